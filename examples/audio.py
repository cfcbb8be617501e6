"""Sounds: some spoken digits are in-distribution, the others near-OOD, and noises from all around far-OOD.

python examples/audio.py FOLDER --ood ANOTHER    # such as Free Spoken Digits (0_anna_3.wav, ...) and ESC-50

The class of a sound is what `--label` matches in its path. Recordings of one speaker are in training and in tests, so
this does not measure new speakers: for those give `make_benchmark` folders for train, val and test.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Sequence

import torch

from spcp import Detector, config_for, data, train

ALPHA = 0.05  # the false alarm rate: the share of ID sounds that may be flagged


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder")
    parser.add_argument("--ood", help="a folder of far-OOD sounds")
    parser.add_argument("--label", default=r"(\d)_[^/]*$", help="a regular expression whose group is the class")
    parser.add_argument("--id-classes", type=int, default=6, help="how many classes are in-distribution")
    parser.add_argument("--epochs", type=int, default=10)
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)  # the network is too small to share
    sounds = data.read_folder(options.folder, kind="audio", label=options.label)
    is_id = sounds.y < options.id_classes
    benchmark = data.make_benchmark(
        data.take(sounds, is_id.nonzero()[:, 0], class_names=sounds.class_names[: options.id_classes]),
        {"noises": options.ood} if options.ood else None,
        near={"others": data.take(sounds, (~is_id).nonzero()[:, 0], split="the other classes")},
        transform={"sample_rate": 8000, "seconds": 0.6, "mels": 40, "hop": 0.015},  # 40 x 41 pixels
        name="sounds",
    )
    print(benchmark.summary(), end="\n\n")
    columns = [flagged(benchmark, method, options.epochs) for method in ("plain", "spcp")]
    print(f"{'':<20}{'plain':>8}{'SPCP':>8}")
    for row in columns[0]:
        print(f"{row:<20}" + "".join(f"{column[row]:>8.1%}" for column in columns))


def flagged(benchmark: data.Benchmark, method: str, epochs: int) -> dict[str, float]:
    """Train, and return the accuracy and the share of each set that the energy score flags."""
    config = config_for(benchmark, method, width=8, epochs=epochs)
    with tempfile.TemporaryDirectory() as folder:  # a folder that you keep is a run that resumes
        model = train(config, folder, benchmark=benchmark).load()
    detector = Detector(model, "energy").calibrate(benchmark.loader("val"), alpha=ALPHA)
    test = detector.bank(benchmark.loader("test"))
    shares = {"accuracy": test.accuracy(), "flagged: test": detector.detect(test).is_ood.float().mean().item()}
    for role in benchmark.sets():
        if role.startswith(("near", "far")):
            shares[role] = detector.detect(benchmark.loader(role)).is_ood.float().mean().item()
    return shares


if __name__ == "__main__":
    main()
