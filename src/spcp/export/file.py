"""Write a detector as one file that runs without this library: ONNX, or a program of `torch.export`."""

from __future__ import annotations

import copy
import datetime
import io
import itertools
import json
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from .. import __version__
from ..data import ImageTransform, Inputs
from ..data.images import as_image, eval_pixels
from ..data.memory import finish, scale_and_shift
from ..errors import InputError, need
from ..exported import FORMAT, INPUT, METADATA, OUTPUTS, ExportedDetection
from ..files import written
from ..scores import Score, name_of
from .graph import onnx_graph, preprocessing_graph, trace, with_preprocessing

TOLERANCE = 1e-4  # of logits and scores, relative to 1 + |their value|
FEATURES = "features"  # the name of their tensor in a file
ALIKE = 0.25  # levels of 256 that the preprocessing may differ by on average
_LARGEST = 2**31 - 1  # bytes of a message of ONNX
_CHECKED = 64  # samples
_TIES = 0.02  # share of samples whose two largest logits may be alike
_ROUNDING = 1e-6  # relative, of sums in another order

Run = Callable[[np.ndarray], Sequence[Any]]
Detector = Any  # that of detector.py, which imports this file


class Decision(nn.Module):
    """A detector as one graph: from a batch to prediction, logits, score, p-value and `is_ood`.

    The calibration is held in three buffers, whose names a file keeps: so a file can be calibrated again.
    """

    calibration: Tensor  # (groups, n), each row sorted and filled up with infinity
    sizes: Tensor  # (groups,), 1 + the number of calibration scores of each
    thresholds: Tensor  # (groups,)

    def __init__(self, detector: Detector, *, names_features: bool = False) -> None:
        super().__init__()
        self.names_features = names_features
        self.model, self.score, self.by_class = detector.model, detector.score, detector.by_class
        bounds = itertools.pairwise(detector.group_starts.tolist())
        groups = [detector.calibration_scores[low:high] for low, high in bounds]
        for name, value in calibration_table(groups, detector.score_thresholds).items():
            self.register_buffer(name, value)

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        """Return the five outputs of a batch."""
        (features, logits, predictions), head = self.model.run(x)
        scores = self.score(features.float(), logits.float(), head)
        table, sizes, thresholds = self.calibration, self.sizes, self.thresholds
        if self.by_class:
            table, sizes, thresholds = (t.index_select(0, predictions) for t in (table, sizes, thresholds))
        # As `conformal.p_values` counts; the infinity that fills a row up counts at infinite scores only.
        count = (table <= scores[:, None]).sum(1).to(torch.float64)  # (B,)
        p = torch.where(scores.isnan(), 0.0, torch.minimum(1 + count, sizes) / sizes)
        is_ood = ~(scores >= thresholds)  # flagged also where the score is NaN
        outputs = predictions, logits.float(), scores, p, is_ood
        return (*outputs, features) if self.names_features else outputs


def calibration_table(groups: Sequence[Tensor], thresholds: Tensor) -> dict[str, Tensor]:
    """Return the buffers of a `Decision`, from the sorted calibration scores of each group."""
    table = thresholds.new_full((len(groups), max(map(len, groups))), torch.inf)
    for row, group in zip(table, groups, strict=True):
        row[: len(group)] = group
    sizes = torch.tensor([1.0 + len(group) for group in groups], dtype=torch.float64)
    return {"calibration": table, "sizes": sizes, "thresholds": thresholds.clone()}


def export(
    detector: Detector,
    path: str | Path,
    samples: Tensor | Sequence[np.ndarray],
    *,
    inputs: Inputs | None = None,
    preprocessing: bool = False,
    notes: Mapping[str, Any] | None = None,
) -> Path:
    """Write a calibrated detector into a file, and check it on samples; see `Detector.export`."""
    path = Path(path).expanduser()
    if path.suffix not in (".onnx", ".pt2"):
        raise InputError(f"{path}: must end in .onnx, or in .pt2 for a program of torch.export")
    detector = _exportable(detector)
    transform = _image_transform(inputs, path) if preprocessing else None
    x = samples if transform is None else prepared(samples, transform)
    if not isinstance(x, Tensor) or x.dtype != torch.float32 or not len(x):
        raise InputError("the samples must be a batch of prepared inputs, a tensor of float32; give at least one")
    x = x[:_CHECKED].cpu()
    about = _about(detector, x, inputs, transform) | dict(notes or {})
    if path.suffix == ".pt2":
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch's own about its internals
            program = trace(Decision(detector).eval(), tuple(x.shape[1:]))
            about["check"] = difference(_program(program), detector, x)
            buffer = io.BytesIO()
            torch.export.save(program, buffer, extra_files={f"{METADATA}.json": json.dumps(about)})
        content = buffer.getvalue()
    else:
        decision = Decision(detector, names_features=True).eval()
        model = onnx_graph(decision, tuple(x.shape[1:]), INPUT, (*OUTPUTS, FEATURES))
        del model.graph.output[len(OUTPUTS) :]  # the name stays: `int8` is told by it what the network is
        about["check"] = difference(_session(serialised(model)), detector, x)
        if transform is not None:
            about["preprocessing_check"] = preprocessing_difference(samples, x, transform)
            model = with_preprocessing(model, transform)
        write_metadata(model, about)
        content = serialised(model)
    with written(path) as file:
        file.write(content)
    return path


def _exportable(detector: Detector) -> Detector:
    """Return the detector on the CPU; an error where a file cannot do what it does."""
    score = name_of(detector.score)
    if detector.alpha is None:
        raise InputError("the detector has no threshold yet; calibrate it with ID samples, then export it")
    if detector.score.needs_inputs:
        raise InputError(f"{score} needs gradients of its inputs, which no file computes; calibrate another score")
    dtypes = {parameter.dtype for parameter in detector.model.parameters()} - {torch.float32}
    if dtypes:
        raise InputError(
            f"the network computes in {str(dtypes.pop()).removeprefix('torch.')}; call network.float(), calibrate it "
            "again, and export that"
        )
    return detector if detector.model.device.type == "cpu" else copy.deepcopy(detector).cpu()


def _image_transform(inputs: Inputs | None, path: Path) -> ImageTransform:
    if inputs is None or not isinstance(inputs.transform, ImageTransform):
        raise InputError("only images can be prepared inside of a file; export without the preprocessing")
    if path.suffix != ".onnx":
        raise InputError(f"{path}: the preprocessing goes into ONNX files only; name a file that ends in .onnx")
    return inputs.transform


def prepared(images: Tensor | Sequence[np.ndarray], transform: ImageTransform) -> Tensor:
    """Return images, bytes (H, W, C) of any size each, as the network gets them."""
    if not all(isinstance(image, np.ndarray | Tensor) and image.ndim == 3 for image in images) or not len(images):
        raise InputError("with the preprocessing inside, the samples must be images, bytes (H, W, C); give some")
    pixels = [eval_pixels(as_image(np.asarray(image), "a sample"), transform) for image in images[:_CHECKED]]
    return finish(torch.from_numpy(np.stack(pixels)).permute(0, 3, 1, 2).contiguous(), transform)


def preprocessing_difference(images: Any, x: Tensor, transform: ImageTransform) -> dict[str, float]:
    """Return by how many levels of 256 images differ that are prepared by a file, and by Pillow: mean and largest."""
    run = _session(serialised(preprocessing_graph(transform, INPUT, "prepared")))
    scale, _ = scale_and_shift(transform.mean, transform.std, torch.device("cpu"))
    theirs = np.concatenate([run(np.asarray(image)[None])[0] for image in images[:_CHECKED]])
    apart = ((torch.from_numpy(theirs) - x).abs() / scale).double()
    if apart.mean() > ALIKE:
        raise InputError(
            f"onnxruntime prepares images otherwise than Pillow, by {apart.mean():.2g} of 256 levels on average; "
            "export without the preprocessing"
        )
    return {"mean": apart.mean().item(), "largest": apart.max().item()}


def difference(run: Run, detector: Detector, x: Tensor) -> float:
    """Return the largest difference of logits and scores between a file and a detector; an error if it is too large.

    It is relative to 1 + their value, and may be 1e-4, and for scores what rounding does to them in the library itself,
    see `_sensitivity`. Of its scores a file must make the p-values and verdicts that the detector makes of them, to the
    bit.
    """
    expected = detector.detect(x)
    with torch.no_grad():
        (features, logits, _), head = detector.model.run(x)
        allowed = TOLERANCE + _sensitivity(detector.score, features, logits, head)
    got, alone = (ExportedDetection(*map(np.asarray, run(batch.numpy()))) for batch in (x, x[:1]))  # any batch size
    predictions, scores = torch.from_numpy(got.predictions), torch.from_numpy(got.scores)
    decided = detector.decide(predictions, scores)
    same = torch.equal(torch.from_numpy(got.is_ood), decided.is_ood)
    same &= torch.equal(torch.from_numpy(got.p_values), decided.p_values)
    of_logits = max(_apart(got.logits, logits), _apart(alone.logits, logits[:1]))
    of_scores = max(_apart(scores, expected.scores), _apart(alone.scores, expected.scores[:1]))
    other = (predictions != expected.predictions).double().mean().item()  # classes may tie
    if of_logits > TOLERANCE or of_scores > allowed or not same or other > _TIES:
        raise InputError(
            f"the exported {name_of(detector.score)} decides otherwise than the detector: logits differ by up to "
            f"{of_logits:.2g}, scores by {of_scores:.2g}, {other:.0%} of the classes; choose another score"
        )
    return max(of_logits, of_scores)


def _sensitivity(score: Score, features: Tensor, logits: Tensor, head: nn.Linear) -> float:
    """Return by how much a score moves when features, logits and the scores of its members change by a few roundings.

    A p-value between two ID samples that score almost alike, as members of a consensus have them, moves by more than
    its inputs do.
    """
    rng, expected = torch.Generator().manual_seed(0), score(features, logits, head)

    def rounded(t: Tensor) -> Tensor:
        return t + _ROUNDING * t.abs() * torch.randn(t.shape, generator=rng)

    members = [part for part in score.modules() if isinstance(part, Score) and part is not score]
    hooks = [part.register_forward_hook(lambda _, inputs, output: rounded(output)) for part in members]
    try:
        return max(_apart(score(rounded(features), rounded(logits), head), expected) for _ in range(4))
    finally:
        for hook in hooks:
            hook.remove()


def _apart(ours: Any, theirs: Any) -> float:
    a, b = (torch.as_tensor(t).double() for t in (ours, theirs))
    apart = (a - b).abs() / (1 + b.abs())
    return torch.where((a == b) | (a.isnan() & b.isnan()), 0.0, apart).nan_to_num(torch.inf).max().item()


def _program(program: torch.export.ExportedProgram) -> Run:
    module = program.module()

    def run(x: np.ndarray) -> Sequence[Any]:
        with torch.no_grad():
            return [output.numpy() for output in module(torch.from_numpy(x))]

    return run


def _session(content: bytes) -> Run:
    runtime = need("onnxruntime", "onnxruntime", "onnx")
    session = runtime.InferenceSession(content, providers=["CPUExecutionProvider"])
    return lambda x: session.run(None, {INPUT: x})


def serialised(model: Any) -> bytes:
    """Return the bytes of an ONNX model, which must fit into one file."""
    if model.ByteSize() > _LARGEST:
        raise InputError("the detector is larger than 2 GB, which an ONNX file cannot hold; export it as .pt2")
    content: bytes = model.SerializeToString()
    return content


def write_metadata(model: Any, about: Mapping[str, Any]) -> None:
    """Put what there is to know about a detector into an ONNX model."""
    kept = [entry for entry in model.metadata_props if entry.key != METADATA]
    del model.metadata_props[:]
    model.metadata_props.extend(kept)
    model.metadata_props.add(key=METADATA, value=json.dumps(about))


def _about(detector: Detector, x: Tensor, inputs: Inputs | None, transform: ImageTransform | None) -> dict[str, Any]:
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
        "class_counts": detector.class_counts,
        "class_names": None if inputs is None else list(inputs.class_names),
        "inputs": {"shape": list(x.shape[1:]), "transform": None} if inputs is None else inputs.as_json(),
        "preprocessing": "outside" if transform is None else "inside",
        "run": None,
    }
