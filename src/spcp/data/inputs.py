"""What a network expects of its inputs, and the names of its classes: enough to run it without its data."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from .audio import AudioTransform
from .errors import DataError
from .images import ImageTransform

Transform = ImageTransform | AudioTransform | None

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
            options = dict(table["transform"]) if table["transform"] else None
            transform = _KINDS[options.pop("kind")](**options) if options else None
            return cls(tuple(map(str, table["class_names"])), tuple(map(int, table["shape"])), transform)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise DataError(f"the description of the inputs cannot be read ({error}); write it again") from error
