"""What a monitor has to know of a detector: its calibration. torch is not imported."""

from __future__ import annotations

import hashlib
import itertools
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from ..errors import InputError, check_numbers, need


@dataclass(frozen=True, eq=False)
class Reference:
    """A detector's calibration.

    Attributes:
        samples: calibration samples by group: one group, or one for each class if p-values are by class.
        alpha: the detector's false alarm rate.
        class_names: names of the classes.
        class_counts: how many calibration samples each class was predicted for; none: classes are not tested.
        scores: sorted calibration scores by group, to break ties by; none: scores are taken to have no ties.
        detector: a fingerprint.
    """

    samples: tuple[int, ...]
    alpha: float = 0.05
    class_names: tuple[str, ...] = ()
    class_counts: tuple[int, ...] = ()
    scores: tuple[NDArray[np.float64], ...] = ()
    detector: str = ""

    def __post_init__(self) -> None:
        check_numbers({"alpha": self.alpha}, {"alpha": (float, 1e-9, 1 - 1e-9)})
        for n in self.samples or (0,):
            check_numbers({"calibration samples": n}, {"calibration samples": (int, 1, 2**40)})
        right = all(type(count) is int and count >= 0 for count in self.class_counts)
        if not right or (self.class_counts and len(self.class_names) not in (0, len(self.class_counts))):
            raise InputError(
                "the counts of predicted classes are not those of its classes; calibrate the detector again"
            )
        if self.scores and tuple(map(len, self.scores)) != self.samples:
            raise InputError("the calibration scores are not as many as there are calibration samples; give all")

    @classmethod
    def of(cls, detector: Any) -> Self:
        """Return the reference of a calibrated `Detector`, of its file, of its run's folder, or of an ONNX file."""
        if hasattr(detector, "metadata"):  # an ExportedDetector
            return cls._of_metadata(detector.metadata, "the detector")
        if not isinstance(detector, str | Path):
            if detector.alpha is None:
                raise InputError("the detector has no threshold yet; call calibrate with ID samples first")
            scores, starts = (getattr(detector, name).cpu().numpy() for name in ("calibration_scores", "group_starts"))
            return cls._of_calibration(scores, starts, detector.alpha, detector.class_counts)
        path = Path(detector).expanduser()
        path = path / "detector.safetensors" if path.is_dir() else path
        return cls._of_onnx(path) if path.suffix == ".onnx" else cls._of_file(path)

    @classmethod
    def _of_calibration(
        cls, scores: Any, starts: Any, alpha: float, counts: Sequence[int] | None, names: Sequence[str] = ()
    ) -> Self:
        digest = hashlib.sha256(scores.tobytes() + starts.tobytes() + repr(alpha).encode()).hexdigest()
        groups = tuple(np.asarray(scores[low:high], np.float64) for low, high in itertools.pairwise(starts))
        sizes = tuple(map(len, groups))
        counts = sizes if counts is None and len(sizes) > 1 else counts
        return cls(sizes, alpha, tuple(names), tuple(counts or ()), groups, digest[:16])

    @classmethod
    def _of_file(cls, path: Path) -> Self:
        open_ = need("safetensors", "safetensors").safe_open
        if not path.is_file():
            raise InputError(f"{path}: there is no such file; calibrate the run, or name the file of a detector")
        try:
            with open_(path, "np") as file:
                about = json.loads(file.metadata()["detector"])
                scores, starts = (file.get_tensor(name) for name in ("calibration_scores", "group_starts"))
            names = about["notes"].get("inputs", {}).get("class_names") or ()
            return cls._of_calibration(scores, starts, about["alpha"], about.get("class_counts"), names)
        except (InputError, ImportError):
            raise
        except Exception as error:  # a damaged header can raise anything
            raise InputError(f"{path}: is not the file of a calibrated detector, or damaged ({error})") from error

    @classmethod
    def _of_onnx(cls, path: Path) -> Self:
        from ..exported import read_metadata

        if not path.is_file():
            raise InputError(f"{path}: there is no such file; name a file that spcp export wrote")
        return cls._of_metadata(read_metadata(path.read_bytes(), path), path)

    @classmethod
    def _of_metadata(cls, about: Mapping[str, Any], name: object) -> Self:
        counts = tuple(about.get("class_counts") or ())
        samples = counts if about["by_class"] else (about["calibration_samples"],)
        if not samples:
            raise InputError(f"{name}: does not say how many calibration samples each class has; export it again")
        digest = hashlib.sha256(json.dumps(dict(about), sort_keys=True).encode()).hexdigest()
        return cls(samples, about["alpha"], tuple(about["class_names"] or ()), counts, (), digest[:16])
