"""A tiny detector, written operator by operator: a file whose answers can be worked out by hand."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

NAMES = ["red", "green", "blue"]
TRANSFORM = {"kind": "image", "resize": 8, "crop": 8, "mean": [0.5, 0.4, 0.3], "std": [0.2, 0.3, 0.4]}
CALIBRATION = np.linspace(0, 4, 99).astype(np.float32)  # scores
THRESHOLD = 0.5


def write(path: Path, kind: str = "image", **about: Any) -> Path:
    """Write a detector whose logits are the means of the three channels, and whose score is the largest logit.

    Args:
        path: the file.
        kind: "image": floats (3, 8, 8); "inside": bytes (8, 8, 3), and "resized": bytes of any size, both prepared
            inside, by the mean colour alone; "array": floats (3,), without a transform.
        about: changes of the metadata.
    """
    shape: list[Any] = {"image": [3, 8, 8], "inside": [8, 8, 3], "resized": ["h", "w", 3], "array": [3]}[kind]
    bytes_in = kind in ("inside", "resized")
    constants = {
        "axes": np.array([1, 2] if bytes_in else [2, 3]),
        "mean": np.array(TRANSFORM["mean"], np.float32) * 255,
        "std": np.array(TRANSFORM["std"], np.float32) * 255,
        "calibration": CALIBRATION[None],
        "threshold": np.array(THRESHOLD, np.float32),
        "last": np.array([1]),
        "one": np.array(1, np.float64),
        "size": np.array(1 + len(CALIBRATION), np.float64),
    }
    node = helper.make_node
    nodes = {
        "image": [node("ReduceMean", ["input", "axes"], ["logits"], keepdims=0)],
        "array": [node("Identity", ["input"], ["logits"])],
    }.get(
        kind,
        [
            node("Cast", ["input"], ["floats"], to=TensorProto.FLOAT),
            node("ReduceMean", ["floats", "axes"], ["colour"], keepdims=0),
            node("Sub", ["colour", "mean"], ["centred"]),
            node("Div", ["centred", "std"], ["logits"]),
        ],
    )
    nodes += [
        node("ArgMax", ["logits"], ["prediction"], axis=1, keepdims=0),
        node("ReduceMax", ["logits", "last"], ["score"], keepdims=0),
        node("Unsqueeze", ["score", "last"], ["column"]),
        node("LessOrEqual", ["calibration", "column"], ["below"]),
        node("Cast", ["below"], ["counted"], to=TensorProto.DOUBLE),
        node("ReduceSum", ["counted", "last"], ["count"], keepdims=0),
        node("Add", ["count", "one"], ["more"]),
        node("Div", ["more", "size"], ["p_value"]),
        node("GreaterOrEqual", ["score", "threshold"], ["is_id"]),
        node("Not", ["is_id"], ["is_ood"]),
    ]
    used = {name for n in nodes for name in n.input}
    outputs = {"prediction": (TensorProto.INT64, ["b"]), "logits": (TensorProto.FLOAT, ["b", 3])}
    outputs |= {"score": (TensorProto.FLOAT, ["b"]), "p_value": (TensorProto.DOUBLE, ["b"])}
    outputs |= {"is_ood": (TensorProto.BOOL, ["b"])}
    graph = helper.make_graph(
        nodes,
        "detector",
        [helper.make_tensor_value_info("input", TensorProto.UINT8 if bytes_in else TensorProto.FLOAT, ["b", *shape])],
        [helper.make_tensor_value_info(name, *value) for name, value in outputs.items()],
        [numpy_helper.from_array(value, name) for name, value in constants.items() if name in used],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    transform = None if kind == "array" else TRANSFORM
    metadata = {
        "format": 1,
        **dict.fromkeys(("spcp", "torch", "date"), "none"),
        "score": "maxlogit",
        "options": {},
        "alpha": 0.05,
        "delta": None,
        "by_class": False,
        "threshold": THRESHOLD,
        "calibration_samples": len(CALIBRATION),
        "class_names": NAMES,
        "inputs": {"class_names": NAMES, "shape": shape if kind == "array" else [3, 8, 8], "transform": transform},
        "preprocessing": "inside" if bytes_in else "outside",
        "run": None,
    }
    helper.set_model_props(model, {"spcp": json.dumps(metadata | about)})
    onnx.save(model, path)
    return path


def logits_of(pixels: np.ndarray) -> np.ndarray:
    """Return the logits of an image (H, W, 3), or of a batch of them, in floats of 64 bits."""
    colour = pixels.astype(np.float64).mean((-3, -2)) / 255
    return (colour - TRANSFORM["mean"]) / TRANSFORM["std"]
