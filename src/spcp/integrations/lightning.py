"""A callback for PyTorch Lightning: it applies SPCP, logs the threshold, and calibrates a detector at the end."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from ..errors import need
from .shaping import Shaping

if TYPE_CHECKING:
    from pytorch_lightning import Callback
else:  # the library has two names, and a callback must come from the one that the trainer comes from
    _name = "lightning.pytorch" if "lightning.pytorch" in sys.modules else "pytorch_lightning"
    Callback = need(_name, "pytorch-lightning", "integrations").Callback


class SPCPCallback(Callback):
    """Trains any LightningModule with SPCP, without a change of its code.

    `detector` is the calibrated detector when `fit` is done; it is also saved in the trainer's root folder, if that is
    given. `spcp_threshold` and `spcp_truncated` are logged after every epoch.

    Args:
        rho_norm: how much to truncate, see `spcp.Truncation`.
        options: `calibration_data`, `train_data`, `score`, `alpha`, `classifier`, see `Shaping`; `beta`, `subset` and
            other fields of `Truncation`.

    Example:
        trainer = Trainer(callbacks=[SPCPCallback(1.0, calibration_data=loader_of_held_out_samples)])
    """

    def __init__(self, rho_norm: float | str, **options: Any) -> None:
        self.shaping = Shaping(rho_norm, **options)  # type: ignore[arg-type]

    @property
    def detector(self) -> Any:
        """The calibrated detector; None before the end, and where there is no calibration data."""
        return self.shaping.detector

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """Apply SPCP before weights are restored from a checkpoint, so that the threshold is, too."""
        self.shaping.apply(pl_module)

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Set the pace of the threshold by the length of the run: every micro-batch is a forward pass."""
        passes = trainer.estimated_stepping_batches * trainer.accumulate_grad_batches
        self.shaping.begin(pl_module, int(passes) if passes < float("inf") else trainer.num_training_batches)

    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        """Log the threshold and the truncated share."""
        pl_module.log_dict(self.shaping.measures(pl_module))

    def on_fit_end(self, trainer: Any, pl_module: Any) -> None:
        """Calibrate; with several processes, the first one does."""
        if trainer.is_global_zero:
            folder = trainer.default_root_dir if trainer.checkpoint_callback is not None else None
            self.shaping.end(pl_module, folder)
