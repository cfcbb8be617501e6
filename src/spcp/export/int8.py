"""Exported files in int8, and the calibration of a file itself: the promise holds for what is shipped."""

from __future__ import annotations

import logging
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch

from ..conformal import calibrated
from ..errors import InputError, need, reason
from ..exported import INPUT, ExportedDetector, read_metadata
from ..files import written
from .file import FEATURES, calibration_table, serialised, write_metadata

Int8 = Literal["dynamic", "static"]

_LAYERS = ("Conv", "Gemm", "MatMul")  # what is computed in int8


def quantise(path: Path, kind: Int8, batches: Iterable[np.ndarray] = ()) -> None:
    """Turn the network in an exported file into int8; head, score and calibration stay as they are.

    "dynamic" scales what enters a layer anew for each batch; "static" by the range that it had on `batches`, inputs as
    the file takes them. Calibrate the file after that: its scores are others now.
    """
    searched = sys.path.copy()
    quantization = need("onnxruntime.quantization", "onnxruntime", "onnx")
    sys.path[:] = searched  # it adds a folder with a package `models`, which would hide the user's
    model = _without_shapes_of_weights(_load(path))
    about = read_metadata(path.read_bytes(), path)
    layers = _layers(model)
    if not layers:
        raise InputError(f"{path}: has no layers that could be computed in int8; leave --int8 out")
    options: dict[str, Any] = {
        "nodes_to_quantize": layers,
        "op_types_to_quantize": list(_LAYERS),
        "per_channel": True,
        "reduce_range": True,  # without it, sums of processors before VNNI overflow
        "weight_type": quantization.QuantType.QInt8,
    }
    with tempfile.TemporaryDirectory(dir=path.parent) as folder:
        result = Path(folder) / "int8.onnx"
        level = logging.root.level
        logging.root.setLevel(logging.ERROR)  # onnxruntime advises on the root logger
        try:
            if kind == "dynamic":
                quantization.quantize_dynamic(model, result, **options)
            else:
                reader: Any = _Reader(batches)
                activations = quantization.QuantType.QUInt8
                quantization.quantize_static(model, result, reader, activation_type=activations, **options)
        except Exception as error:  # onnxruntime has a dozen kinds
            raise InputError(f"{path}: onnxruntime cannot make it int8 ({reason(error)}); leave --int8 out") from error
        finally:
            logging.root.setLevel(level)
        _write(path, _load(result), about | {"int8": kind})


def _without_shapes_of_weights(model: Any) -> Any:
    """Leave out what a graph says about the shapes of its weights: the quantiser transposes some, such as a head's."""
    weights = {tensor.name for tensor in model.graph.initializer}
    kept = [value for value in model.graph.value_info if value.name not in weights]
    del model.graph.value_info[:]
    model.graph.value_info.extend(kept)
    return model


class _Reader:
    """Gives batches to onnxruntime, one after the other."""

    def __init__(self, batches: Iterable[np.ndarray]) -> None:
        self.batches = iter(batches)

    def get_next(self) -> dict[str, np.ndarray] | None:
        batch = next(self.batches, None)
        return None if batch is None else {INPUT: batch}


def calibrate_file(path: str | Path, batches: Iterable[np.ndarray]) -> ExportedDetector:
    """Set the threshold and p-values of an exported file anew, on ID samples that it scores itself.

    `batches` are inputs as the file takes them, of samples that nothing was fitted or chosen on. The false alarm rate
    stays that of the file.
    """
    path = Path(path).expanduser()
    detector = ExportedDetector.open(path)
    parts = [(d.predictions, d.scores, d.logits[:0]) for d in map(detector.detect, batches)]
    if not parts:
        raise InputError(f"{path}: there are no samples to calibrate it on; give some")
    predictions, scores, no_logits = (torch.from_numpy(np.concatenate(column)) for column in zip(*parts, strict=True))
    about, model = dict(detector.metadata), _load(path)
    tensors = {tensor.name: tensor for tensor in model.graph.initializer}
    by_class, count = about["by_class"], tensors["thresholds"].dims[0] if "thresholds" in tensors else 0
    groups, thresholds = calibrated(scores, predictions if by_class else None, count, about["alpha"], about["delta"])
    helper = need("onnx.numpy_helper", "onnx", "onnx")
    for name, value in calibration_table(groups, thresholds).items():
        if name not in tensors:
            raise InputError(f"{path}: has no {name} that could be changed; export it again with spcp export")
        tensors[name].CopyFrom(helper.from_array(value.numpy(), name))
    about["threshold"] = thresholds.tolist() if by_class else thresholds.item()
    about["calibration_samples"] = len(scores)
    about["class_counts"] = torch.bincount(predictions, minlength=no_logits.shape[1]).tolist()
    _write(path, model, about)
    return ExportedDetector.open(path)


def _load(path: Path) -> Any:
    return need("onnx", "onnx", "onnx").load(path, load_external_data=False)


def _write(path: Path, model: Any, about: dict[str, Any]) -> None:
    write_metadata(model, about)
    with written(path) as file:
        file.write(serialised(model))


def _layers(model: Any) -> list[str]:
    """Return the names of the layers from the input to the features."""
    makers = {output: node for node in model.graph.node for output in node.output}
    wanted, kinds = [FEATURES], {}
    while wanted:
        node = makers.get(wanted.pop())
        if node is not None and node.name not in kinds:
            kinds[node.name] = node.op_type
            wanted += node.input
    layers = [name for name, kind in kinds.items() if kind in _LAYERS]
    return layers + [f"{name}_MatMul" for name in layers if kinds[name] == "Gemm"]  # as the quantiser renames it
