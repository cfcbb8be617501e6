"""What a network expects of its inputs, and the names of its classes: enough to run it without its data."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from .audio import AudioTransform
from .errors import DataError
from .images import ImageTransform

Transform = ImageTransform | AudioTransform | None

_LARGEST = 1 << 26  # numbers in a sample
_KINDS: Mapping[str, type[ImageTransform] | type[AudioTransform]] = {"image": ImageTransform, "audio": AudioTransform}


@dataclass(frozen=True)
class Inputs:
    """The inputs of a network.

    Attributes:
        class_names: the names of the classes.
        shape: the shape of one prepared sample, such as (3, 32, 32).
        transform: how a sample is prepared; None for floats, which are taken as they are.
    """

    class_names: tuple[str, ...]
    shape: tuple[int, ...]
    transform: Transform

    def as_json(self) -> dict[str, Any]:
        """Return a description that JSON can hold.

        >>> Inputs.from_json(Inputs(("cat", "dog"), (8,), None).as_json()).class_names
        ('cat', 'dog')
        """
        transform = None
        if self.transform is not None:
            kind = next(name for name, transform in _KINDS.items() if type(self.transform) is transform)
            transform = {"kind": kind, **dataclasses.asdict(self.transform)}
        return {"class_names": list(self.class_names), "shape": list(self.shape), "transform": transform}

    @classmethod
    def from_json(cls, table: Any) -> Inputs:
        """Make the inputs from a description by `as_json`."""
        try:
            names, shape, options = table["class_names"], table["shape"], table["transform"]
            if not isinstance(names, list) or not names or not all(isinstance(name, str) for name in names):
                raise ValueError("class_names must be a list of names")
            if not isinstance(shape, list) or not shape or not all(type(size) is int and size > 0 for size in shape):
                raise ValueError("shape must be a list of whole numbers")
            if math.prod(shape) > _LARGEST:
                raise ValueError(f"shape {shape} is too large for a sample")
            transform = None
            if options is not None:
                transform = _KINDS[options["kind"]](**{key: options[key] for key in options if key != "kind"})
            return cls(tuple(names), tuple(shape), transform)
        except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
            raise DataError(f"the description of the inputs cannot be read ({error}); write it again") from error

    def alike(self, other: Inputs) -> bool:
        """Return whether both are of the same data; mean and deviation, which may be measured, need not be exact."""
        a: Any = self.transform
        b: Any = other.transform
        if a is not None and type(a) is type(b) and np.shape(a.mean) == np.shape(b.mean):
            close = np.allclose(a.mean, b.mean, rtol=1e-3) and np.allclose(a.std, b.std, rtol=1e-3)
            b = dataclasses.replace(b, mean=a.mean, std=a.std) if close else b
        return (self.class_names, self.shape, a) == (other.class_names, other.shape, b)
