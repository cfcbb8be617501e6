"""What a decision costs: the consensus beside its members, and a whole detection beside the bare network.

    python benchmarks/detectors.py [--check] [--seconds 5]

Aims: scoring a bank with the consensus takes at most 1.1 times as long as its members together; detecting one image of
224 x 224 pixels takes at most 1.2 times as long as the bare ResNet-18; and detecting one digit takes at most 0.2 ms
longer than the bare small CNN, with the energy: what a detection costs whatever the network. That is the difference of
the quickest tenths, as others may use the machine.
"""

from __future__ import annotations

import argparse
import logging
import statistics

import torch
from timing import finish, interleaved, machine, ratio

from spcp import Detector, networks
from spcp.bank import FeatureBank
from spcp.scores import MEMBERS, build_score

CONSENSUS_AIM, DETECTION_AIM, FIXED_AIM = 1.1, 1.2, 0.2
SHAPES = [(50_000, 10_000, 512, 10), (50_000, 10_000, 512, 100)]  # training and test samples, D, K
SCORES = ("energy", "knn", "consensus", "consensus-large")


def random_bank(head: torch.nn.Linear, count: int) -> FeatureBank:
    with torch.no_grad():
        h = torch.randn(count, head.in_features).relu()
        return FeatureBank.of(h, head(h), torch.randint(head.out_features, (count,)))


def consensus_ratio(shape: tuple[int, int, int, int], seconds: float) -> float:
    """How many times as long as its members together the consensus takes to score a bank."""
    train, test, num_features, num_classes = shape
    head = torch.nn.Linear(num_features, num_classes)
    fit, held_out, bank = (random_bank(head, count) for count in (train, 1000, test))
    names = ("consensus", *MEMBERS["default"])
    whole, *members = (build_score(name).fit(fit, head).fit_held_out(held_out, head) for name in names)
    return ratio(
        *interleaved([lambda: whole.scores(bank, head), lambda: [one.scores(bank, head) for one in members]], seconds)
    )


def detection_ratio(name: str, seconds: float) -> float:
    """How many times as long as the bare network the detection of one image takes."""
    network = networks.resnet18_224(1000).eval()
    x = torch.randn(1, 3, 224, 224)
    detector = Detector(network, name).fit(random_bank(network.classifier, 5000))
    detector.calibrate(random_bank(network.classifier, 500))

    @torch.no_grad()
    def bare() -> torch.Tensor:
        return network(x)

    plain, whole = interleaved([bare, lambda: detector.detect(x)], seconds)
    return ratio(whole, plain)


def fixed_cost(seconds: float) -> tuple[float, float]:
    """Milliseconds that the small CNN takes for one digit, and what a detection adds."""
    network = networks.cnn(10).eval()
    x = torch.randn(1, 1, 28, 28)
    detector = Detector(network, "energy").calibrate(torch.randn(500, 1, 28, 28))

    @torch.no_grad()
    def bare() -> torch.Tensor:
        return network(x)

    times = interleaved([bare, lambda: detector.detect(x)], seconds)
    plain, whole = (1000 * statistics.quantiles(own, n=10)[0] for own in times)
    return plain, whole - plain


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="exit 1 when an aim is missed")
    parser.add_argument("--seconds", type=float, default=5.0, help="for each comparison")
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    logging.getLogger("spcp").setLevel(logging.ERROR)  # it warns of networks with random weights
    missed = []
    print(machine())
    print("\n| scoring, as a multiple of its members together | N | D | K | consensus |\n|---|---|---|---|---|")
    for shape in SHAPES:
        value = consensus_ratio(shape, options.seconds)
        print(f"| {' + '.join(MEMBERS['default'])} | {shape[1]} | {shape[2]} | {shape[3]} | {value:.2f}x |")
        if value > CONSENSUS_AIM:
            missed.append(f"consensus at K = {shape[3]}: {value:.2f}x, the aim is {CONSENSUS_AIM}x")
    print("\n| detecting one image of 224 pixels | of the bare ResNet-18 |\n|---|---|")
    for name in SCORES:
        value = detection_ratio(name, options.seconds)
        print(f"| {name} | {value:.2f}x |")
        if value > DETECTION_AIM:
            missed.append(f"detection with {name}: {value:.2f}x, the aim is {DETECTION_AIM}x")
    plain, added = fixed_cost(options.seconds)
    print(f"\none digit: {plain:.3f} ms for the bare small CNN, and {added:.3f} ms for the detection by energy")
    if added > FIXED_AIM:
        missed.append(f"a detection adds {added:.3f} ms, the aim is {FIXED_AIM} ms")
    finish(missed, options.check)


if __name__ == "__main__":
    main()
