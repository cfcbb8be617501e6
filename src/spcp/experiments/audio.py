"""Sounds to experiment on: the paper's, if the user has them; spoken digits; and tones, which are made."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from pathlib import Path

import torch

from ..data import (
    AudioTransform,
    Benchmark,
    DataError,
    FileSet,
    TensorSet,
    as_ood,
    load_benchmark,
    log_mel,
    make_benchmark,
    read_folder,
    take,
)
from ..data.downloads import data_root

ID_DIGITS = 6  # digits 0 to 5; the others are near-OOD
SPOKEN = {"sample_rate": 8000, "seconds": 0.6, "mels": 40, "hop": 0.015}  # 40 x 41 pixels


def kinetics_sound(root: str | Path | None) -> Benchmark:
    """Read the paper's data, as the user describes them in `kinetics-sound.toml` below the data folder."""
    path = data_root(root) / "kinetics-sound.toml"
    if not path.exists():
        raise DataError(
            f"{path}: is not there; Kinetics-Sound cannot be downloaded by a program, so describe your copy in this "
            "file (docs/own-data.md), or choose --budget cpu or small, which take spoken digits"
        )
    return dataclasses.replace(load_benchmark(path), name="kinetics-sound")


def spoken_digits(root: str | Path | None) -> Benchmark:
    """Read spoken digits: 0 to 5 are ID, 6 to 9 near-OOD; sounds of the environment and noise are far-OOD.

    Half of the sounds of the environment validate.
    """
    folder = data_root(root)
    for name, address in (
        ("free-spoken-digits/recordings", "https://github.com/Jakobovski/free-spoken-digit-dataset"),
        ("esc-50/audio", "https://github.com/karolpiczak/ESC-50"),
    ):
        if not (folder / name).is_dir():
            raise DataError(f"{folder / name}: is not there; get it from {address}, or name the data folder (--root)")
    sounds = read_folder(folder / "free-spoken-digits/recordings", kind="audio", label=r"(\d)_[^/]*$")
    is_id = sounds.y < ID_DIGITS
    clips = as_ood(read_folder(folder / "esc-50/audio", kind="audio"))
    assert isinstance(clips, FileSet)
    recording = [Path(path).name.split("-")[1] for path in clips.paths]  # of which there may be several clips
    rank = {name: i for i, name in enumerate(sorted(set(recording)))}
    validates = torch.tensor([rank[name] % 2 == 0 for name in recording])
    benchmark = make_benchmark(
        take(sounds, is_id.nonzero()[:, 0], class_names=sounds.class_names[:ID_DIGITS]),
        {"environment": take(clips, (~validates).nonzero()[:, 0])},
        near={"other digits": take(as_ood(sounds), (~is_id).nonzero()[:, 0])},
        ood_val={"environment": take(clips, validates.nonzero()[:, 0])},
        transform=SPOKEN,
        name="spoken-digits",
    )
    assert isinstance(benchmark.transform, AudioTransform)
    return dataclasses.replace(benchmark, far={**benchmark.far, "noise": _noise(500, benchmark.transform, 1)})


def tones(root: str | Path | None) -> Benchmark:
    """Make chords: four pitches are ID, another is near-OOD, noise is far-OOD. They teach nothing, but are quick."""
    del root
    transform, rng = AudioTransform(8000, 0.3, mels=20), torch.Generator().manual_seed(0)
    time = torch.arange(transform.samples) / transform.sample_rate

    def chords(pitch: int, count: int) -> torch.Tensor:
        phase = 6.3 * torch.rand(count, 1, generator=rng)
        wave = torch.sin(6.2832 * 300 * (pitch + 1) * time + phase)
        return log_mel(wave + 0.3 * torch.randn(wave.shape, generator=rng), transform)

    y = torch.arange(4).repeat_interleave(60)
    id_set = TensorSet("tones", torch.cat([chords(k, 60) for k in range(4)]), y, class_names=tuple("abcd"))
    near = TensorSet("near", chords(4, 30), torch.full((30,), -1))
    return make_benchmark(
        id_set,
        {"noise": _noise(30, transform, 1)},
        near={"another": near},
        ood_val={"other noise": _noise(30, transform, 2)},
        name="tones",
    )


def _noise(count: int, transform: AudioTransform, seed: int) -> TensorSet:
    """Make white noise of various loudness."""
    rng = torch.Generator().manual_seed(seed)
    loud = torch.rand(count, 1, generator=rng)
    x = log_mel(loud * torch.randn(count, transform.samples, generator=rng), transform)
    return TensorSet("noise", x, torch.full((count,), -1), split="made")


BENCHMARKS: Mapping[str, Callable[[str | Path | None], Benchmark]] = {
    "kinetics-sound": kinetics_sound,
    "spoken-digits": spoken_digits,
    "tones": tones,
}
