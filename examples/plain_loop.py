"""A plain PyTorch loop on the embedded digits: the share of each OOD set that is flagged, plain against SPCP.

python examples/plain_loop.py
python examples/plain_loop.py --rho-norm 0 0.3 1 2    # to choose: the one that flags most of ood_val

What SPCP does depends on the network. This one ends in BatchNorm and an average, as the paper's do; in trials with
features out of a fully connected layer, or without BatchNorm, the same rho_norm mostly flagged less than plain
training, and at times next to nothing. So compare with 0, and choose on ood_val.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

import torch
from torch import nn

from spcp import Detector, apply_spcp, data

ALPHA = 0.05  # the false alarm rate: the share of ID digits that may be flagged


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rho-norm", type=float, nargs="+", default=[0.0, 1.0], help="0 is plain training")
    parser.add_argument("--epochs", type=int, default=15)
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)  # the network is too small to share
    benchmark = data.load_benchmark("digits")
    columns = [flagged(train(benchmark, rho_norm, options.epochs), benchmark) for rho_norm in options.rho_norm]
    print(f"{'rho_norm':<20}" + "".join(f"{rho_norm:>8g}" for rho_norm in options.rho_norm))
    for row in columns[0]:
        print(f"{row:<20}" + "".join(f"{column[row]:>8.1%}" for column in columns))


def train(benchmark: data.Benchmark, rho_norm: float, epochs: int) -> nn.Module:
    torch.manual_seed(0)
    model = build(len(benchmark.class_names))
    loader = benchmark.loader("train", batch_size=50, train=True)
    steps = epochs * len(loader)
    if rho_norm:
        apply_spcp(model, rho_norm, total_steps=steps)  # all that SPCP takes
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, nesterov=True, weight_decay=5e-4)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    for _ in range(epochs):
        for x, y in loader:
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()
            schedule.step()
    return model.eval()


def build(num_classes: int) -> nn.Sequential:
    """Build convolutions, an average and a linear layer: any classifier that ends in one will do."""
    layers: list[nn.Module] = []
    for inputs, outputs, stride in ((1, 16, 2), (16, 32, 1), (32, 64, 2), (64, 128, 2)):
        layers += [nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False), nn.BatchNorm2d(outputs), nn.ReLU()]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(128, num_classes))


def flagged(model: nn.Module, benchmark: data.Benchmark) -> dict[str, float]:
    """Return the accuracy, and by set the share that the energy score flags; validation digits set the threshold."""
    detector = Detector(model, "energy").calibrate(benchmark.loader("val"), alpha=ALPHA)
    test = detector.bank(benchmark.loader("test"))
    rates = {"accuracy": test.accuracy(), "flagged: test": detector.detect(test).is_ood.float().mean().item()}
    for role in benchmark.sets():
        if role.startswith(("ood_val", "near", "far")):
            rates[role] = detector.detect(benchmark.loader(role)).is_ood.float().mean().item()
    return rates


if __name__ == "__main__":
    main()
