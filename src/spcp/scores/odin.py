"""ODIN (Liang et al., 2018): a step towards the predicted class, and a high temperature."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..errors import InputError
from .base import Score
from .msp import msp


def odin(logits: Callable[[Tensor], Tensor], x: Tensor, T: float, eps: float, std: Tensor | float = 1.0) -> Tensor:
    """Return `msp(z(x - eps / std * sign(grad_x CE(z(x) / T, argmax z))) / T)`, (B,)."""
    with torch.inference_mode(False), torch.enable_grad():
        x = (x.clone() if x.is_inference() else x).detach().requires_grad_()
        z = logits(x) / T
        (gradient,) = torch.autograd.grad(F.cross_entropy(z, z.argmax(1), reduction="sum"), x)
    with torch.no_grad():
        return msp(logits(x - eps / std * gradient.sign()) / T)


class ODIN(Score):
    """The MSP of inputs that moved towards their predicted class; `std` is that of the transform.

    It needs the network and the inputs: two more passes, one of them backwards.
    """

    paper = "Enhancing The Reliability of Out-of-distribution Image Detection in Neural Networks (ODIN), ICLR 2018"
    formula = "msp(z(x - eps / std sign(grad CE)) / T)"
    cost = "the network runs twice more forwards and once backwards; keeps nothing; cannot be exported"
    ranges = {"T": (1e-6, math.inf), "eps": (0, math.inf)}
    sweep = {"T": (1.0, 10.0, 100.0, 1000.0), "eps": (0.0014, 0.0028)}
    needs_inputs = True

    def __init__(self, *, T: float = 1000.0, eps: float = 0.0014, std: tuple[float, ...] = (1.0,)) -> None:
        super().__init__()
        self.T, self.eps, self.std = T, eps, std

    def score(self, h: Tensor, z: Tensor, head: nn.Linear) -> Tensor:
        """Raise an error: features are not enough."""
        raise InputError("ODIN needs inputs, not features; call score_inputs(logits, x), or use a Detector")

    def score_inputs(self, logits: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
        """Return the scores (B,) of inputs x; `logits` runs the network."""
        std: Any = torch.tensor(self.std, dtype=x.dtype, device=x.device)
        std = std.view(1, -1, *[1] * (x.ndim - 2)) if x.ndim > 2 else std
        return odin(logits, x, self.T, self.eps, std)
