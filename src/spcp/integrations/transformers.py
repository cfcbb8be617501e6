"""A callback for Hugging Face's Trainer: it applies SPCP, logs the threshold, and calibrates a detector at the end."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..errors import need
from .shaping import Shaping

if TYPE_CHECKING:
    from transformers import TrainerCallback
else:
    TrainerCallback = need("transformers", "transformers", "pretrained").TrainerCallback


class SPCPTrainerCallback(TrainerCallback):
    """Trains the Trainer's model with SPCP.

    SPCP is applied when the Trainer is built, so that checkpoints are restored with their threshold; `save_model` keeps
    it, and `spcp.networks.from_pretrained` loads it. `spcp_threshold` and `spcp_truncated` join every entry of the log.
    At the end `detector` is calibrated and saved in the output folder.

    Args:
        rho_norm: how much to truncate, see `spcp.Truncation`.
        options: `calibration_data`, `train_data`, `score`, `alpha`, `classifier`, see `Shaping`; `beta`, `subset` and
            other fields of `Truncation`.

    Example:
        Trainer(model, arguments, train_dataset=train, callbacks=[SPCPTrainerCallback(1.0, calibration_data=held_out)])
    """

    def __init__(self, rho_norm: float | str, **options: Any) -> None:
        self.shaping = Shaping(rho_norm, **options)  # type: ignore[arg-type]

    @property
    def detector(self) -> Any:
        """The calibrated detector; None before the end, and where there is no calibration data."""
        return self.shaping.detector

    def on_init_end(self, args: Any, state: Any, control: Any, **inputs: Any) -> None:
        """Apply SPCP."""
        self.shaping.apply(inputs["model"])

    def on_train_begin(self, args: Any, state: Any, control: Any, **inputs: Any) -> None:
        """Set the pace of the threshold by the length of the run: every micro-batch is a forward pass."""
        self.shaping.apply(inputs["model"])  # `model_init` makes a new one
        self.shaping.begin(inputs["model"], state.max_steps * args.gradient_accumulation_steps)

    def on_log(self, args: Any, state: Any, control: Any, **inputs: Any) -> None:
        """Add the threshold and the truncated share to the log."""
        measures = self.shaping.measures(inputs["model"])
        inputs.get("logs", {}).update(measures)  # for callbacks that come later
        if state.log_history:
            state.log_history[-1].update(measures)

    def on_train_end(self, args: Any, state: Any, control: Any, **inputs: Any) -> None:
        """Calibrate; with several processes, the first one does."""
        if state.is_world_process_zero:
            self.shaping.end(inputs["model"], args.output_dir)
