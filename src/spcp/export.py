"""Write a detector as one file that runs without this library: ONNX, or a program of `torch.export`."""

from __future__ import annotations

import contextlib
import datetime
import json
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from . import __version__
from .errors import InputError, need
from .exported import FORMAT, INPUT, METADATA, OUTPUTS, ExportedDetector
from .files import written
from .scores import name_of

if TYPE_CHECKING:
    from .data import Inputs

TOLERANCE = 1e-4  # of logits and scores, relative to 1 + |their value|


class Decision(nn.Module):
    """A detector as one graph: from a batch to prediction, logits, score, p-value and `is_ood`.

    The calibration is held in three buffers, whose names a file keeps: so a file can be calibrated again.
    """

    calibration: Tensor  # (groups, n), each row sorted and filled up with infinity
    sizes: Tensor  # (groups,), 1 + the number of calibration scores of each
    thresholds: Tensor  # (groups,)

    def __init__(self, model: nn.Module, score: nn.Module, by_class: bool, groups: list[Tensor], thresholds: Tensor):
        super().__init__()
        self.model, self.score, self.by_class = model, score, by_class
        for name, value in calibration_table(groups, thresholds).items():
            self.register_buffer(name, value)

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        """Return the five outputs of a batch."""
        model: Any = self.model
        (features, logits, predictions), head = model.run(x)
        scores = self.score(features.float(), logits.float(), head)
        if self.by_class:
            table, size, threshold = (
                self.calibration[predictions],
                self.sizes[predictions],
                self.thresholds[predictions],
            )
        else:
            table, size, threshold = self.calibration, self.sizes, self.thresholds
        # As `p_values` counts; infinity, with which a row is filled up, counts at infinite scores only.
        count = (table <= scores[:, None]).sum(1).to(torch.float64)  # (B,)
        p = torch.minimum(1 + count, size) / size
        return predictions, logits.float(), scores, torch.where(scores.isnan(), 0.0, p), ~(scores >= threshold)


def calibration_table(groups: list[Tensor], thresholds: Tensor) -> dict[str, Tensor]:
    """Return the buffers of a `Decision`, from the sorted calibration scores of each group."""
    table = torch.full((len(groups), max(map(len, groups))), torch.inf)
    for row, group in zip(table, groups, strict=True):
        row[: len(group)] = group
    sizes = torch.tensor([1.0 + len(group) for group in groups], dtype=torch.float64)
    return {"calibration": table, "sizes": sizes, "thresholds": thresholds}


def export(
    detector: Any,
    path: str | Path,
    samples: Tensor,
    *,
    inputs: Inputs | None = None,
    notes: Mapping[str, Any] | None = None,
) -> Path:
    """Write a calibrated detector as an ONNX file, and check it on samples; see `Detector.export`."""
    path = Path(path).expanduser()
    decision = _decision(detector)
    samples = samples.to(detector.model.device)
    with _quiet():
        model = _onnx(decision, torch.zeros_like(samples[:1]).expand(2, *samples.shape[1:]))
    about = _about(detector, samples, inputs) | dict(notes or {})
    entry = model.metadata_props.add()
    entry.key, entry.value = METADATA, json.dumps(about)
    with written(path) as file:
        file.write(model.SerializeToString())
    return path


def _decision(detector: Any) -> Decision:
    if detector.alpha is None:
        raise InputError("the detector has no threshold yet; call calibrate with ID samples, then export it")
    if detector.score.needs_inputs:
        raise InputError(
            f"{name_of(detector.score)} needs gradients of the input, which a file cannot compute; "
            "calibrate another score, such as energy"
        )
    starts = detector.group_starts.tolist()
    groups = [detector.calibration_scores[low:high] for low, high in zip(starts, starts[1:], strict=False)]
    return Decision(detector.model, detector.score, detector.by_class, groups, detector.score_thresholds).eval()


def _onnx(decision: Decision, example: Tensor) -> Any:
    """Return the graph as a protobuf message of ONNX."""
    need("onnxscript", "onnxscript", "onnx")
    batch = torch.export.Dim("batch")
    program = torch.onnx.export(
        decision,
        (example,),
        input_names=[INPUT],
        output_names=list(OUTPUTS),
        dynamic_shapes=({0: batch},),
        dynamo=True,
        verbose=False,
    )
    assert program is not None
    return program.model_proto


def _about(detector: Any, samples: Tensor, inputs: Inputs | None) -> dict[str, Any]:
    """Return what a file says about its detector."""
    thresholds = detector.score_thresholds.tolist()
    return {
        "format": FORMAT,
        "spcp": __version__,
        "torch": torch.__version__,
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "score": name_of(detector.score),
        "options": detector.score.options,
        "alpha": detector.alpha,
        "delta": detector.delta,
        "by_class": detector.by_class,
        "threshold": thresholds if detector.by_class else thresholds[0],
        "calibration_samples": len(detector.calibration_scores),
        "class_names": None if inputs is None else list(inputs.class_names),
        "inputs": {"shape": list(samples.shape[1:]), "transform": None} if inputs is None else inputs.as_json(),
        "preprocessing": "outside",
        "run": None,
        "check": None,
    }


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
