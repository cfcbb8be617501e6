"""The three torch operators behind the public functions, and the choice of the kernels that run them.

As operators (`torch.ops.spcp.*`) they pass through `torch.compile` unbroken. They take matrices of float32 or
float64 on one device.
"""

from __future__ import annotations

import math
from types import ModuleType

import torch
from torch import Tensor

from . import eager, native

torch.library.define("spcp::clip", "(Tensor h, Tensor W, Tensor? b, Tensor threshold) -> Tensor")
torch.library.define(
    "spcp::clip_grad",
    "(Tensor g, Tensor h, Tensor W, Tensor threshold, bool need_h, bool need_W) -> (Tensor, Tensor)",
)
torch.library.define("spcp::contribution_quantile", "(Tensor h, Tensor W, float level) -> Tensor")


def kernels_for(h: Tensor) -> ModuleType:
    """Return the fastest module with `clip`, `clip_grad` and `quantile` for this dtype and device."""
    if h.dtype == torch.float32:
        if h.device.type == "cpu" and native.available():
            return native
        if h.device.type == "cuda":
            from . import triton_kernels  # imported here: it needs Triton, which comes with a CUDA build of torch

            if triton_kernels.available():
                return triton_kernels
    return eager


@torch.library.impl("spcp::clip", "default")
def _clip(h: Tensor, W: Tensor, b: Tensor | None, threshold: Tensor) -> Tensor:
    if h.shape[0] == 0:
        return h.new_zeros(0, W.shape[0])
    if threshold.device.type == "cpu" and math.isnan(threshold.item()):  # to look would wait for a GPU
        raise ValueError("threshold is NaN; it must be a number.")
    return kernels_for(h).clip(h, W, b, threshold)


@torch.library.register_fake("spcp::clip")
def _(h: Tensor, W: Tensor, b: Tensor | None, threshold: Tensor) -> Tensor:
    return h.new_empty(h.shape[0], W.shape[0])


@torch.library.impl("spcp::clip_grad", "default")
def _clip_grad(g: Tensor, h: Tensor, W: Tensor, threshold: Tensor, need_h: bool, need_W: bool) -> tuple[Tensor, Tensor]:
    if h.shape[0] == 0:
        return h.new_zeros(h.shape if need_h else 0), W.new_zeros(W.shape if need_W else 0)
    return kernels_for(h).clip_grad(g, h, W, threshold, need_h, need_W)


@torch.library.register_fake("spcp::clip_grad")
def _(g: Tensor, h: Tensor, W: Tensor, threshold: Tensor, need_h: bool, need_W: bool) -> tuple[Tensor, Tensor]:
    return h.new_empty(h.shape if need_h else 0), W.new_empty(W.shape if need_W else 0)


@torch.library.impl("spcp::contribution_quantile", "default")
def _contribution_quantile(h: Tensor, W: Tensor, level: float) -> Tensor:
    if h.shape[0] == 0:
        return h.new_empty(0)
    return kernels_for(h).quantile(h, W, level)


@torch.library.register_fake("spcp::contribution_quantile")
def _(h: Tensor, W: Tensor, level: float) -> Tensor:
    return h.new_empty(h.shape[0])
