"""Does the promise hold? False alarm rates of `consensus` and of `auto`, over many draws of the calibration data.

    python benchmarks/promise.py [--draws 1.0] [--check]

A linear head on Gaussian features of eight classes; all members of the consensus look at the same features, so they
depend strongly on each other. "Ties": features rounded to halves, so that many samples are equal. `auto` chooses
among all scores, on OOD data close to the ID data, where the choice is noisy. Each draw calibrates on n new ID samples
and counts what is flagged of 20 000 others. Writes docs/promise.md. With `--check` exits 1 where the mean rate
lies above alpha by more than three standard errors.
"""

from __future__ import annotations

import argparse
import logging
from collections.abc import Callable
from pathlib import Path

import torch
from timing import finish, machine
from torch import Tensor, nn

from spcp.bank import FeatureBank
from spcp.choice import auto_detector
from spcp.detector import Detector
from spcp.errors import InputError
from spcp.files import written
from spcp.tables import to_markdown

ALPHAS = (0.01, 0.05, 0.1)
DRAWS = {100: 200, 1000: 60, 10_000: 15}  # by n: rates of small calibration sets scatter more
CLASSES, FEATURES = 8, 16
SAMPLES = 20_000  # that a rate is counted on
PAGE_HEAD = """# The promise, by simulation

A detector calibrated with alpha flags at most a share alpha of ID samples, on average over calibration sets. Here many
sets are drawn. The classifier is linear, on Gaussian features of eight classes, and all members of the consensus look
at the same features, so they depend strongly on each other. With ties, features are rounded to halves, so that many
samples are equal. `auto` chooses among all scores, on OOD data close to the ID data, where the choice is noisy. Each
draw calibrates on n new ID samples and counts what is flagged of 20 000 others.

`python benchmarks/promise.py`; {machine}.
"""
PAGE = Path(__file__).parent.parent / "docs" / "promise.md"


class World:
    """Gaussian classes, and the linear classifier that is best for them."""

    def __init__(self, ties: bool) -> None:
        self.rng, self.ties = torch.Generator().manual_seed(int(ties)), ties
        self.means = 2 * torch.randn(CLASSES, FEATURES, generator=self.rng)
        self.head = nn.Linear(FEATURES, CLASSES)
        self.head.weight.data, self.head.bias.data = self.means, -self.means.square().sum(1) / 2

    @torch.no_grad()
    def bank(self, count: int, *, spread: float = 1.0) -> FeatureBank:
        """Draw samples; a `spread` above 1 makes them OOD."""
        y = torch.randint(CLASSES, (count,), generator=self.rng)
        h: Tensor = self.means[y] + spread * torch.randn(count, FEATURES, generator=self.rng)
        h = (2 * h).round() / 2 if self.ties else h
        return FeatureBank.of(h, self.head(h), y)


def consensus_of(world: World, train: FeatureBank) -> Callable[[int, float], Detector]:
    detector = Detector(world.head).fit(train)
    return lambda n, alpha: detector.calibrate(world.bank(n), alpha)


def auto_of(world: World, train: FeatureBank) -> Callable[[int, float], Detector]:
    ood = {"close": world.bank(200, spread=1.1)}
    return lambda n, alpha: auto_detector(world.head, world.bank(n), ood=ood, train=train, alpha=alpha)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--draws", type=float, default=1.0, help="as a multiple of what is usual")
    parser.add_argument("--check", action="store_true", help="exit 1 when an aim is missed")
    options = parser.parse_args()
    torch.set_num_threads(1)
    logging.getLogger("spcp").setLevel(logging.CRITICAL)  # it warns that the OOD data is hard to detect
    rows, missed = [], []
    for name, of in (("consensus", consensus_of), ("auto", auto_of)):
        for ties in ("no", "yes"):
            world = World(ties == "yes")
            calibrated = of(world, world.bank(2000))
            for n, usual in DRAWS.items():
                draws = max(2, round(usual * options.draws))
                for alpha in ALPHAS:
                    try:
                        rates = torch.stack(
                            [
                                calibrated(n, alpha).detect(world.bank(SAMPLES)).is_ood.double().mean()
                                for _ in range(draws)
                            ]
                        )
                    except InputError as error:
                        rows.append([name, ties, str(n), str(alpha), "0", f"refused: {error}", ""])
                        continue
                    mean, error_of_mean = rates.mean().item(), rates.std().item() / draws**0.5
                    figures = [f"{100 * mean:.2f} %", f"{100 * error_of_mean:.2f}"]
                    rows.append([name, ties, str(n), str(alpha), str(draws), *figures])
                    print(*rows[-1], sep="\t", flush=True)
                    if mean > alpha + 3 * error_of_mean:
                        missed.append(
                            f"{name}, ties {ties}, n = {n}: {100 * mean:.2f} % flagged, promised {100 * alpha:g} %"
                        )
    header = ["score", "ties", "n", "alpha", "draws", "mean false alarm rate", "standard error, points"]
    text = f"{PAGE_HEAD.format(machine=machine())}\n{to_markdown(header, rows)}"
    with written(PAGE) as file:
        file.write(text.encode())
    finish(missed, options.check)


if __name__ == "__main__":
    main()
