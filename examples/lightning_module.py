"""PyTorch Lightning on the embedded digits: the share of each OOD set that is flagged, plain against SPCP.

python examples/lightning_module.py --rho-norm 1
"""

from __future__ import annotations

import argparse
import logging
from collections.abc import Sequence
from typing import Any

import pytorch_lightning as lightning
import torch
from torch import Tensor, nn

from spcp import Detector, data
from spcp.integrations.lightning import SPCPCallback

ALPHA = 0.05  # the false alarm rate: the share of ID digits that may be flagged


class Classifier(lightning.LightningModule):
    """A module as always: the callback turns its last layer into an SPCP head."""

    def __init__(self, num_classes: int, total_steps: int) -> None:
        super().__init__()
        self.total_steps = total_steps
        self.network = build(num_classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.network(x)

    def training_step(self, batch: tuple[Tensor, Tensor], _: int) -> Tensor:
        x, y = batch
        return nn.functional.cross_entropy(self(x), y)

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.SGD(self.parameters(), lr=0.05, momentum=0.9, nesterov=True, weight_decay=5e-4)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, self.total_steps)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rho-norm", type=float, default=1.0)
    parser.add_argument("--epochs", type=int, default=15)
    options = parser.parse_args(arguments)
    logging.getLogger("pytorch_lightning").setLevel(logging.WARNING)
    torch.set_num_threads(1)  # the network is too small to share
    benchmark = data.load_benchmark("digits")
    columns = [flagged(train(benchmark, rho, options.epochs), benchmark) for rho in (0.0, options.rho_norm)]
    print(f"{'':<20}{'plain':>8}{'SPCP':>8}")
    for row in columns[0]:
        print(f"{row:<20}" + "".join(f"{column[row]:>8.1%}" for column in columns))


def train(benchmark: data.Benchmark, rho_norm: float, epochs: int) -> Detector:
    """Train, and calibrate the energy score on validation digits at the end."""
    torch.manual_seed(0)
    loader = benchmark.loader("train", batch_size=50, train=True)  # any DataLoader will do
    module = Classifier(len(benchmark.class_names), total_steps=epochs * len(loader))
    callback = SPCPCallback(rho_norm, calibration_data=benchmark.loader("val"), score="energy", alpha=ALPHA)
    trainer = lightning.Trainer(
        max_epochs=epochs,
        callbacks=[callback],
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(module, loader)
    detector: Detector = callback.detector
    return detector


def build(num_classes: int) -> nn.Sequential:
    """Build convolutions, an average and a linear layer: any classifier that ends in one will do."""
    layers: list[nn.Module] = []
    for inputs, outputs, stride in ((1, 16, 2), (16, 32, 1), (32, 64, 2), (64, 128, 2)):
        layers += [nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False), nn.BatchNorm2d(outputs), nn.ReLU()]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(128, num_classes))


def flagged(detector: Detector, benchmark: data.Benchmark) -> dict[str, float]:
    """Return the accuracy, and by set the share that the detector flags."""
    test = detector.bank(benchmark.loader("test"))
    rates = {"accuracy": test.accuracy(), "flagged: test": detector.detect(test).is_ood.float().mean().item()}
    for role in benchmark.sets():
        if role.startswith(("ood_val", "near", "far")):
            rates[role] = detector.detect(benchmark.loader(role)).is_ood.float().mean().item()
    return rates


if __name__ == "__main__":
    main()
