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
    """Known data, odd data, and how both are prepared."""

    name: str
    transform: Transform
    class_names: tuple[str, ...]
    train: DataSet | None
    val: DataSet | None
    test: DataSet
    ood_val: Mapping[str, DataSet] = field(default_factory=dict)  # for choosing hyperparameters, never for results
    near: Mapping[str, DataSet] = field(default_factory=dict)
    far: Mapping[str, DataSet] = field(default_factory=dict)
    shifted: Mapping[str, DataSet] = field(default_factory=dict)  # known classes, other conditions
    notes: tuple[str, ...] = ()  # what is missing or incomplete, and how to get it
    exceptions: Mapping[str, ImageTransform] = field(default_factory=dict)  # sets that are prepared in another way

    def transform_of(self, role: str) -> Transform:
        """How the set "near/tin", say, is prepared: as all are, but for the exceptions."""
        return self.exceptions.get(role, self.transform)

    def loader(self, role: str, **options: Any) -> Loader:
        """Batches of the set "train" or "near/tin", say, with its transform; options are `Loader`'s."""
        known = self.sets()
        if role not in known:
            raise DataError(f"{self.name}: has no set {role!r}; there are {', '.join(known)}")
        return Loader(known[role], self.transform_of(role), **options)

    def inputs(self) -> Inputs:
        """What a network for it gets to see; one sample is prepared for it."""
        x, _ = next(iter(self.loader("test", batch_size=1)))
        return Inputs(self.class_names, tuple(x.shape[1:]), self.transform)

    def fewer(self, images: int | None) -> Benchmark:
        """The same with at most so many training images, the first ones of each class; None leaves all."""
        if images is None or self.train is None or images >= len(self.train):
            return self
        each = images // len(self.class_names)
        if each < 1:
            raise DataError(f"{self.name}: {images} images are too few for {len(self.class_names)} classes; take more")
        index = (rank_in_class(labels(self.train)) < each).nonzero()[:, 0]
        words = f"the first {each} of each class"
        split = f"{self.train.split}, {words}" if self.train.split else words
        return dataclasses.replace(self, train=take(self.train, index, split=split))

    def sets(self) -> dict[str, DataSet]:
        """All sets by role and name: "train", "val", "test", "ood_val/tin", "near/cifar100", ..."""
        own = {"train": self.train, "val": self.val, "test": self.test}
        groups = {"ood_val": self.ood_val, "near": self.near, "far": self.far, "shifted": self.shifted}
        known = {role: data for role, data in own.items() if data is not None}
        return known | {f"{role}/{name}": data for role, group in groups.items() for name, data in group.items()}

    def summary(self) -> str:
        """A table of the sets, with sizes and where each split comes from, and the notes."""
        lines = [f"{self.name}: {len(self.class_names)} classes"]
        width = max(map(len, self.sets()))
        lines += [f"  {role:<{width}}{len(data):>9}  {data.split}" for role, data in self.sets().items()]
        return "\n".join(lines + [f"  note: {note}" for note in self.notes])

    __repr__ = summary
