"""How many images go through the network for 11 scores and 6 OOD sets, by pytorch-ood and by us.

    pip install --no-deps pytorch-ood
    python benchmarks/passes.py [--check]

Counted at the network's first layer. The data has a training set, a validation set, a test set and 6 OOD sets. Aim:
exactly once for each image.
"""

from __future__ import annotations

import argparse
import tempfile
from typing import Any, ClassVar

import torch
from scores import TORCHVISION  # noqa: F401  declares the operators that torchvision wants
from timing import finish, machine
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from spcp import data
from spcp.evaluation import Evaluation

TRAIN, VAL, TEST, OOD, SETS, K = 2000, 200, 1000, 1000, 6, 10
OURS = ("msp", "maxlogit", "energy", "dice", "react", "knn", "vim", "mds", "rmds", "klm", "gen")


class Network(nn.Module):
    seen: ClassVar[list[int]] = [0]  # of the class: a change of an instance would be a change of the model

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Flatten(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 32), nn.ReLU())
        self.fc = nn.Linear(32, K)
        self.body[0].register_forward_hook(lambda _, inputs, output: self.count(inputs[0]))

    def count(self, x: Tensor) -> None:
        self.seen[0] += len(x)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.fc(self.body(x))
        return logits


def part(n: int, is_ood: bool, seed: int) -> data.TensorSet:
    rng = torch.Generator().manual_seed(seed)
    y = torch.full((n,), -1) if is_ood else torch.arange(n) % K
    return data.TensorSet(f"set {seed}", torch.randn(n, 1, 8, 8, generator=rng) + is_ood, y)


def random_benchmark() -> data.Benchmark:
    ood = {f"ood {i}": part(OOD, True, 10 + i) for i in range(SETS)}
    return data.Benchmark(
        "random", None, tuple("0123456789"), part(TRAIN, False, 0), part(VAL, False, 1), part(TEST, False, 2), far=ood
    )


def theirs(network: Network, benchmark: data.Benchmark) -> None:
    """As its documentation has it: fit each detector on a loader, then score each set."""
    from pytorch_ood import detector as peer

    body, W, b = network.body, network.fc.weight, network.fc.bias
    detectors: list[Any] = [
        peer.MaxSoftmax(network),
        peer.MaxLogit(network),
        peer.EnergyBased(network),
        peer.DICE(body, W, b, p=0.9),
        peer.ReAct(body, network.fc),
        peer.KNN(body),
        peer.ViM(body, d=16, w=W, b=b),
        peer.Mahalanobis(body),
        peer.RMD(body),
        peer.KLMatching(network),
        peer.GEN(network),
    ]

    def loader(one: Any) -> Any:
        return DataLoader(TensorDataset(one.x, one.y), batch_size=256)

    for detector in detectors:
        if detector.requires_fit:
            detector.fit(
                loader(benchmark.val if isinstance(detector, peer.KLMatching | peer.ReAct) else benchmark.train)
            )
        for one in (benchmark.test, *benchmark.far.values()):
            with torch.no_grad():
                for x, _ in loader(one):
                    detector(x)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="exit 1 when the aim is missed")
    arguments = parser.parse_args()
    torch.manual_seed(0)
    network, benchmark = Network().eval(), random_benchmark()
    images = TRAIN + VAL + TEST + SETS * OOD
    theirs(network, benchmark)
    peer = network.seen[0] / images
    network.seen[0] = 0
    with tempfile.TemporaryDirectory() as folder:
        Evaluation(network, benchmark, folder=folder).table(OURS)
        factor = network.seen[0] / images
        Evaluation(network, benchmark, folder=folder).table(OURS)
        again = network.seen[0] / images - factor
    print(machine())
    print(f"{len(OURS)} scores, {SETS} OOD sets, {images} images")
    print(f"pytorch-ood {peer:.2f} times, spcp {factor:.2f} times, a second time {again:.2f}")
    finish([f"{factor:.2f} times, aim 1.00"] if network.seen[0] != images else [], arguments.check)


if __name__ == "__main__":
    main()
