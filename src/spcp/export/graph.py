"""From a module to an ONNX graph: operators that ONNX lacks as functions of its own, and the test transform of images.

A function is written in ONNX's text format, and inlined: a file holds nothing but standard operators.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import nn

from ..contributions import as_operator
from ..data import ImageTransform
from ..data.memory import scale_and_shift
from ..errors import InputError, need, reason

OPSET = 20
_BATCH = "batch"

# z[b,k] = sum_d min(W[k,d] h[b,d], threshold), without the (B, K, D) contributions. A feature d of a sample can exceed
# the threshold only if its largest product with W[:,d] does: those few features are truncated and summed up, sample by
# sample, and a matrix product does the others. As every term is added once, no digits are lost to differences.
_CLIP = """
Clip (h, W, threshold) => (z) {
    rows = Constant <value_ints = [0]> ()
    columns = Constant <value_ints = [1]> ()
    WT = Transpose <perm = [1, 0]> (W)
    highest = ReduceMax <keepdims = 0> (W, rows)
    lowest = ReduceMin <keepdims = 0> (W, rows)
    by_highest = Mul (h, highest)
    by_lowest = Mul (h, lowest)
    most = Max (by_highest, by_lowest)
    within = LessOrEqual (most, threshold)
    exceeds = Not (within)
    zero = Sub (threshold, threshold)
    h_within = Where (within, h, zero)
    untouched = MatMul (h_within, WT)
    truncated = Scan <num_scan_inputs = 2, body = sample (float[D] row, bool[D] on) => (float[K] sums) {
        places = NonZero (on)
        chosen = Squeeze (places, rows)
        h_chosen = Gather <axis = 0> (row, chosen)
        h_column = Unsqueeze (h_chosen, columns)
        W_chosen = Gather <axis = 0> (WT, chosen)
        c = Mul (W_chosen, h_column)
        bounded = Min (c, threshold)
        sums = ReduceSum <keepdims = 0> (bounded, rows)
    }> (h, exceeds)
    z = Add (untouched, truncated)
}"""

# How many of a sorted table are not larger than each value; 0 for NaN.
_SEARCH_SORTED = """
SearchSorted (table, values) => (count) {
    last = Constant <value_ints = [-1]> ()
    column = Unsqueeze (values, last)
    lower = LessOrEqual (table, column)
    ones = Cast <to = 7> (lower)
    count = ReduceSum <keepdims = 0> (ones, last)
}"""

# The test transform of `ImageTransform`, of bytes (B, H, W, C). onnxruntime resizes bytes in whole numbers as Pillow
# does, and rounds to bytes in between.
_PREPARE = """
Prepare (pixels) => (prepared) {{
    resize = Constant <value_ints = [{resize}, {resize}]> ()
    crop = Constant <value_ints = [{crop}, {crop}]> ()
    scale = Constant <value_floats = [{scale}]> ()
    shift = Constant <value_floats = [{shift}]> ()
    half = Constant <value_float = 0.5> ()
    axes = Constant <value_ints = [1, 2]> ()
    sides = Shape <start = 1, end = 3> (pixels)
    short = ReduceMin <keepdims = 1> (sides)
    enlarged = Mul (sides, resize)
    sizes = {sizes}
    resized = Resize <axes = [1, 2], mode = "{mode}", antialias = {antialias}, cubic_coeff_a = -0.5,
                      nearest_mode = "round_prefer_ceil"> (pixels, , , sizes)
    margin = Sub (sizes, crop)
    margin_float = Cast <to = 1> (margin)
    middle = Mul (margin_float, half)
    middle_even = Round (middle)
    start = Cast <to = 7> (middle_even)
    end = Add (start, crop)
    cropped = Slice (resized, start, end, axes)
    values = Cast <to = 1> (cropped)
    scaled = Mul (values, scale)
    normalised = Sub (scaled, shift)
    prepared = Transpose <perm = [0, 3, 1, 2]> (normalised)
}}"""
_MODES = {"nearest": "nearest", "bilinear": "linear", "bicubic": "cubic"}


def trace(module: nn.Module, sample: tuple[int, ...]) -> torch.export.ExportedProgram:
    """Return the program of a module for batches of any size of samples of a shape; no data go into it.

    Raises an error where what the network does depends on the values that it gets.
    """
    example = torch.zeros(2, *sample)
    try:
        return torch.export.export(module, (example,), dynamic_shapes=({0: torch.export.Dim(_BATCH)},), strict=False)
    except InputError:
        raise
    except Exception as error:  # torch has a dozen kinds
        raise InputError(
            f"the network cannot be written as one graph ({reason(error)}): what it does depends on the values or the "
            "number of its inputs; replace such branches by torch.where, and Python numbers of the batch by its shape"
        ) from error


def onnx_graph(module: nn.Module, sample: tuple[int, ...], input_name: str, outputs: Sequence[str]) -> Any:
    """Return a module as a message of ONNX (`onnx.ModelProto`), for batches of any size."""
    need("onnxscript", "onnxscript", "onnx")
    with warnings.catch_warnings(), as_operator():
        warnings.simplefilter("ignore")  # torch's own about its internals
        program = trace(module, sample)
        try:
            converted = torch.onnx.export(
                program,
                input_names=[input_name],
                output_names=list(outputs),
                opset_version=OPSET,
                verbose=False,
                custom_translation_table=_translations(),
            )
        except Exception as error:  # torch has a dozen kinds
            raise InputError(
                f"ONNX cannot express the network or the score ({_cause(error)}); export a .pt2 program, or choose "
                "another score"
            ) from error
    assert converted is not None
    return _inlined(converted.model_proto, {"Clip": _CLIP, "SearchSorted": _SEARCH_SORTED})


def _cause(error: BaseException) -> str:
    """Return what an error comes down to; those of torch's exporter are chained."""
    while error.__cause__ is not None:
        error = error.__cause__
    return reason(error)


def _translations() -> dict[Callable[..., Any], Callable[..., Any]]:
    """Return how operators of torch become functions of ours."""
    op = need("onnxscript", "onnxscript", "onnx").opset18
    clip, search_sorted = (
        _operator("Clip", ("h", "W", "threshold"), "T"),
        _operator("SearchSorted", ("table", "values"), "N"),
    )

    def clipped(h: Any, W: Any, b: Any, threshold: Any) -> Any:
        z = clip(h, W, threshold)
        return z if b is None else op.Add(z, b)

    def searched(table: Any, values: Any, **options: Any) -> Any:
        if not options.get("right") or options.get("sorter") is not None:
            raise NotImplementedError("searchsorted from the left")
        return search_sorted(table, values)

    def log_add_exp(a: Any, b: Any) -> Any:  # torch's own translation overflows
        smaller = op.Exp(op.Neg(op.Abs(op.Sub(a, b))))
        return op.Add(op.Max(a, b), op.Log(op.Add(smaller, op.CastLike(op.Constant(value_float=1.0), smaller))))

    return {
        torch.ops.spcp.clip.default: clipped,
        torch.ops.aten.searchsorted.Tensor: searched,
        torch.ops.aten.logaddexp.default: log_add_exp,
    }


def _operator(name: str, inputs: tuple[str, ...], result: str) -> Any:
    values, schema = need("onnxscript.values", "onnxscript", "onnx"), need("onnx.defs", "onnx", "onnx").OpSchema
    parameters = [schema.FormalParameter(name, "T") for name in inputs]
    kinds = [("T", ["tensor(float)", "tensor(double)"], ""), ("N", ["tensor(int64)"], "")]
    described = schema(
        name, "spcp", 1, inputs=parameters, outputs=[schema.FormalParameter("result", result)], type_constraints=kinds
    )
    return values.Op(values.Opset("spcp", 1), name, described)


def _inlined(model: Any, functions: Mapping[str, str]) -> Any:
    """Return a model with calls of our functions replaced by what they do."""
    inliner, parser = need("onnx.inliner", "onnx", "onnx"), need("onnx.parser", "onnx", "onnx")
    called = {node.op_type for node in model.graph.node if node.domain == "spcp"}
    header = f'<domain: "spcp", opset_import: ["" : {OPSET}]>'
    model.functions.extend(parser.parse_function(header + functions[name]) for name in functions if name in called)
    model = inliner.inline_local_functions(model) if called else model
    kept = [entry for entry in model.opset_import if entry.domain != "spcp"]
    del model.opset_import[:]
    model.opset_import.extend(kept)
    return model


def with_preprocessing(model: Any, transform: ImageTransform) -> Any:
    """Return a model that takes bytes (B, H, W, C) of images of any size, and prepares them itself."""
    onnx, result = need("onnx", "onnx", "onnx"), copy.deepcopy(model)
    (entry,) = result.graph.input
    name, prepared = entry.name, f"{entry.name}_prepared"
    for node in result.graph.node:
        node.input[:] = [prepared if value == name else value for value in node.input]
    shape = [_BATCH, "height", "width", transform.channels]
    entry.CopyFrom(onnx.helper.make_tensor_value_info(name, onnx.TensorProto.UINT8, shape))
    result.graph.node.insert(0, onnx.helper.make_node("Prepare", [name], [prepared], domain="spcp"))
    result.opset_import.append(onnx.helper.make_opsetid("spcp", 1))
    return _inlined(result, {"Prepare": _prepare(transform)})


def preprocessing_graph(transform: ImageTransform, name: str, output: str) -> Any:
    """Return the preprocessing alone."""
    onnx = need("onnx", "onnx", "onnx")
    pixels = onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, None)
    prepared = onnx.helper.make_tensor_value_info(output, onnx.TensorProto.FLOAT, None)
    node = onnx.helper.make_node("Identity", [name], [output])
    graph = onnx.helper.make_graph([node], "preprocessing", [pixels], [prepared])
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", OPSET)], ir_version=10)
    return with_preprocessing(model, transform)


def _prepare(transform: ImageTransform) -> str:
    if transform.interpolation not in _MODES:
        raise InputError(
            f"ONNX cannot resize by {transform.interpolation} interpolation; export without the preprocessing"
        )
    constants = scale_and_shift(transform.mean, transform.std, torch.device("cpu"))
    scale, shift = (", ".join(f"{value:.9e}" for value in constant.flatten().tolist()) for constant in constants)
    return _PREPARE.format(
        resize=transform.resize,
        crop=transform.crop,
        scale=scale,
        shift=shift,
        sizes="Identity (resize)" if transform.squash else "Div (enlarged, short)",
        mode=_MODES[transform.interpolation],
        antialias=int(transform.interpolation != "nearest"),
    )
