"""Sounds: some spoken digits are known, the others are near them, and noises from all around are far.

python examples/audio.py FOLDER --odd ANOTHER    # such as Free Spoken Digits (0_anna_3.wav, ...) and ESC-50

The class of a sound is what `--label` finds in its path. Recordings of one speaker are in training and in tests alike,
so this says nothing about new speakers: for those give `make_benchmark` folders for train, val and test.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Sequence

import torch

from spcp import Detector, data, training

ALPHA = 0.05  # the share of known sounds that may be flagged


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder")
    parser.add_argument("--odd", help="a folder of sounds that are far from those")
    parser.add_argument("--label", default=r"(\d)_[^/]*$", help="a regular expression whose group is the class")
    parser.add_argument("--known", type=int, default=6, help="how many classes are known")
    parser.add_argument("--epochs", type=int, default=10)
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)  # the network is too small to share
    sounds = data.read_folder(options.folder, kind="audio", label=options.label)
    known = sounds.y < options.known
    benchmark = data.make_benchmark(
        data.take(sounds, known.nonzero()[:, 0], class_names=sounds.class_names[: options.known]),
        {"odd": options.odd} if options.odd else None,
        near={"others": data.take(sounds, (~known).nonzero()[:, 0], split="the other classes")},
        transform={"sample_rate": 8000, "seconds": 0.6, "mels": 40, "hop": 0.015},  # 40 x 41 pixels
        name="sounds",
    )
    print(benchmark.summary(), end="\n\n")
    columns = [flagged(benchmark, method, options.epochs) for method in ("plain", "spcp")]
    print(f"{'':<20}{'plain':>8}{'SPCP':>8}")
    for row in columns[0]:
        print(f"{row:<20}" + "".join(f"{column[row]:>8.1%}" for column in columns))


def flagged(benchmark: data.Benchmark, method: str, epochs: int) -> dict[str, float]:
    """Train; then accuracy, and by set the share that the energy score flags."""
    config = training.config_for("sounds", method, network="audio_cnn", width=8, epochs=epochs)
    with tempfile.TemporaryDirectory() as folder:  # a folder that you keep is a run that resumes
        network, _ = training.load_network(training.train(config, folder, benchmark=benchmark))
    detector = Detector(network, "energy").calibrate(benchmark.loader("val"), alpha=ALPHA)
    known = detector.features(benchmark.loader("test"))
    found = {"accuracy": known.accuracy(), "flagged: test": detector.detect(known).is_ood.float().mean().item()}
    for role in benchmark.sets():
        if role.startswith(("near", "far")):
            found[role] = detector.detect(benchmark.loader(role)).is_ood.float().mean().item()
    return found


if __name__ == "__main__":
    main()
