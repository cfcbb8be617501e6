"""A benchmark: in-distribution data, out-of-distribution data, and how both are prepared."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from .errors import DataError
from .images import ImageTransform
from .inputs import Inputs, Transform
from .loader import Loader
from .sets import DataSet, labels, rank_in_class, take


@dataclass(frozen=True, repr=False)
class Benchmark:
    """In-distribution data, out-of-distribution data by group, and how both are prepared."""

    name: str
    transform: Transform
    class_names: tuple[str, ...]
    train: DataSet | None
    val: DataSet | None
    test: DataSet
    ood_val: Mapping[str, DataSet] = field(default_factory=dict)  # for choosing hyperparameters, never for results
    near: Mapping[str, DataSet] = field(default_factory=dict)
    far: Mapping[str, DataSet] = field(default_factory=dict)
    shifted: Mapping[str, DataSet] = field(default_factory=dict)  # ID classes under other conditions
    notes: tuple[str, ...] = ()  # what is missing or incomplete, and how to get it
    exceptions: Mapping[str, ImageTransform] = field(default_factory=dict)  # sets with a transform that differs

    def transform_of(self, role: str) -> Transform:
        """Return the transform of a set such as "near/tin": the benchmark's, unless the set is an exception."""
        return self.exceptions.get(role, self.transform)

    def loader(self, role: str, **options: Any) -> Loader:
        """Return the batches of a set such as "train" or "near/tin", with its transform; options are `Loader`'s."""
        sets = self.sets()
        if role not in sets:
            raise DataError(f"{self.name}: has no set {role!r}; there are {', '.join(sets)}")
        return Loader(sets[role], self.transform_of(role), **options)

    def inputs(self) -> Inputs:
        """Return what a network for this benchmark expects, as seen from one prepared sample."""
        x, _ = next(iter(self.loader("test", batch_size=1)))
        return Inputs(self.class_names, tuple(x.shape[1:]), self.transform)

    def fewer(self, images: int | None) -> Benchmark:
        """Return the benchmark with at most so many training images, the first of each class; None leaves all."""
        if images is None or self.train is None or images >= len(self.train):
            return self
        each = images // len(self.class_names)
        if each < 1:
            raise DataError(f"{self.name}: {images} images are too few for {len(self.class_names)} classes; take more")
        index = (rank_in_class(labels(self.train)) < each).nonzero()[:, 0]
        split = ", ".join(filter(None, [self.train.split, f"the first {each} of each class"]))
        return dataclasses.replace(self, train=take(self.train, index, split=split))

    def sets(self) -> dict[str, DataSet]:
        """Return all sets by role and name: "train", "val", "test", "ood_val/tin", "near/cifar100", ..."""
        parts = {"train": self.train, "val": self.val, "test": self.test}
        groups = {"ood_val": self.ood_val, "near": self.near, "far": self.far, "shifted": self.shifted}
        id_sets = {role: data for role, data in parts.items() if data is not None}
        return id_sets | {f"{role}/{name}": data for role, group in groups.items() for name, data in group.items()}

    def summary(self) -> str:
        """Return a table of the sets, with sizes and where each split comes from, and the notes."""
        lines = [f"{self.name}: {len(self.class_names)} classes"]
        width = max(map(len, self.sets()))
        lines += [f"  {role:<{width}}{len(data):>9}  {data.split}" for role, data in self.sets().items()]
        return "\n".join(lines + [f"  note: {note}" for note in self.notes])

    __repr__ = summary
