"""What the callbacks share: they give a model an SPCP head, measure it, and calibrate a detector at the end."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ..contributions import RhoNorm, SPCPLinear, apply_spcp, find_classifier
from ..detector import Detector
from ..scores import DEFAULT

DETECTOR = "detector.safetensors"
SAMPLES = 64  # of the last batch, on which the truncated share is measured


class Shaping:
    """The life of an SPCP head in somebody else's training loop.

    Args:
        rho_norm: how much to truncate, see `Truncation`; 0 trains as ever, and only calibrates.
        classifier: the dotted name of the layer that makes the logits, where it cannot be found.
        calibration_data: ID samples that the network is not trained on; without them there is no detector.
        train_data: what the score is fitted on, if it needs that.
        score: of the detector.
        alpha: the largest false alarm rate.
        options: other fields of `Truncation`.
    """

    def __init__(
        self,
        rho_norm: RhoNorm,
        *,
        classifier: str | None = None,
        calibration_data: Any = None,
        train_data: Any = None,
        score: str = DEFAULT,
        alpha: float = 0.05,
        **options: Any,
    ) -> None:
        self.rho_norm, self.classifier, self.options = rho_norm, classifier, options
        self.calibration_data, self.train_data = calibration_data, train_data
        self.score, self.alpha = score, alpha
        self.detector: Detector | None = None
        self._features: Tensor | None = None  # that the head got last
        self._hook: Any = None

    def apply(self, model: nn.Module) -> None:
        """Turn the classifier into an SPCP head, if it is not one already."""
        if self.rho_norm == 0:
            return
        _, linear = find_classifier(model, self.classifier)
        if not isinstance(linear, SPCPLinear):
            apply_spcp(model, self.rho_norm, classifier=self.classifier, **self.options)

    def begin(self, model: nn.Module, total_steps: int) -> None:
        """Set the pace of the threshold by the forward passes of the run, and begin to look at the head's inputs."""
        head = self._head(model)
        if head is None:
            return
        if head.truncation.total_steps is None and head.truncation.beta is None:
            head.truncation = dataclasses.replace(head.truncation, total_steps=max(1, total_steps))
        if self._hook is None:
            self._hook = head.register_forward_pre_hook(self._keep)

    def _keep(self, _: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        self._features = inputs[0].detach()

    def _head(self, model: nn.Module) -> SPCPLinear | None:
        return next((module for module in model.modules() if isinstance(module, SPCPLinear)), None)

    @torch.no_grad()
    def measures(self, model: nn.Module) -> dict[str, float]:
        """Return the threshold, and the share of contributions above it in the last batch."""
        head, h = self._head(model), self._features
        if head is None:
            return {}
        values = {"spcp_threshold": float(head.threshold)}
        if h is not None:
            h = h.reshape(-1, h.shape[-1])[:SAMPLES].float()
            over = sum(int((sample * head.weight > head.threshold).sum()) for sample in h)
            values["spcp_truncated"] = over / (len(h) * head.weight.numel())
        return values

    def end(self, model: nn.Module, folder: str | Path | None) -> None:
        """Stop looking, and calibrate a detector of the model, if there is data for that; save it in the folder."""
        if self._hook is not None:
            self._hook.remove()
            self._hook = self._features = None
        if self.calibration_data is None:
            return
        detector = Detector(model, self.score, classifier=self.classifier)
        if self.train_data is not None:
            detector.fit(self.train_data)
        self.detector = detector.calibrate(self.calibration_data, self.alpha)
        if folder is not None:
            self.detector.save(Path(folder) / DETECTOR)
