"""Hugging Face's Trainer on the embedded digits: the share of each OOD set that is flagged, plain against SPCP.

pip install '.[examples]'
python examples/hf_trainer.py --rho-norm 1

The network is a small ResNet with random weights; a trained one (`from_pretrained`) goes the same way. The Trainer's
checkpoints hold the threshold; `spcp.networks.from_pretrained` loads them with the head.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Sequence

import torch
from transformers import ResNetConfig, ResNetForImageClassification, Trainer, TrainingArguments

from spcp import Detector, data
from spcp.integrations.transformers import SPCPTrainerCallback

ALPHA = 0.05  # the false alarm rate: the share of ID digits that may be flagged
BATCH = 50


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rho-norm", type=float, default=1.0)
    parser.add_argument("--epochs", type=int, default=10)
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)  # the network is too small to share
    benchmark = data.load_benchmark("digits")
    columns = [flagged(train(benchmark, rho, options.epochs), benchmark) for rho in (0.0, options.rho_norm)]
    print(f"{'':<20}{'plain':>8}{'SPCP':>8}")
    for row in columns[0]:
        print(f"{row:<20}" + "".join(f"{column[row]:>8.1%}" for column in columns))


def train(benchmark: data.Benchmark, rho_norm: float, epochs: int) -> Detector:
    """Train, and calibrate the energy score on validation digits at the end."""
    torch.manual_seed(0)
    model = ResNetForImageClassification(
        ResNetConfig(
            num_channels=1,
            embedding_size=16,
            hidden_sizes=[32, 128],
            depths=[1, 1],
            layer_type="basic",
            id2label=dict(enumerate(benchmark.class_names)),
        )
    )
    samples = [
        {"pixel_values": image, "labels": label}
        for x, y in benchmark.loader("train")
        for image, label in zip(x, y, strict=True)
    ]
    callback = SPCPTrainerCallback(rho_norm, calibration_data=benchmark.loader("val"), score="energy", alpha=ALPHA)
    with tempfile.TemporaryDirectory() as folder:
        settings = TrainingArguments(
            folder,
            num_train_epochs=epochs,
            per_device_train_batch_size=BATCH,
            learning_rate=2e-3,
            lr_scheduler_type="cosine",
            logging_strategy="no",
            save_strategy="no",
            report_to="none",
            disable_tqdm=True,
            dataloader_pin_memory=False,
        )
        Trainer(model, settings, train_dataset=samples, callbacks=[callback]).train()
    detector: Detector = callback.detector
    return detector


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
