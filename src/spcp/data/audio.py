"""Sounds: from a waveform to a log-mel spectrogram, in torch, which is imported when a sound is read."""

from __future__ import annotations

import functools
import io
import math
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import numpy as np

from .errors import DataError, check_file, need

if TYPE_CHECKING:
    from torch import Tensor

_FORMATS = {"WAV", "WAVEX", "RF64", "AIFF", "FLAC", "OGG", "MP3"}  # of these it can be told whether the end is missing
_LARGEST = 2**28  # samples of a sound, 1 GiB: 90 minutes at 48 kHz
_FASTEST = 400_000  # Hz: the filter from one rate to another can be 20 times as long as the larger


@dataclass(frozen=True)
class AudioTransform:
    """How sounds are prepared for a network: as (1, mels, frames) of `(log mel - mean) / std`.

    A sound is averaged over its channels, resampled to `sample_rate`, and shortened or padded to `seconds`.
    """

    sample_rate: int = 16_000
    seconds: float = 1.0
    mels: int = 64
    window: float = 0.025  # seconds
    hop: float = 0.010  # seconds
    mean: float = 0.0
    std: float = 1.0

    def __post_init__(self) -> None:
        whole = all(isinstance(value, int) and value > 0 for value in (self.sample_rate, self.mels))
        if not whole or not all(
            isinstance(v, int | float) and math.isfinite(v)
            for v in (self.seconds, self.window, self.hop, self.mean, self.std)
        ):
            raise DataError(f"{self}: sample_rate and mels must be positive whole numbers, the rest numbers")
        if self.samples < self.window_samples or self.hop_samples < 1 or not self.std > 0:
            raise DataError(f"{self}: the length must hold a window, and rate, hop and std must be positive")
        if self.sample_rate > _FASTEST or self.samples > _LARGEST or self.mels * self.bins > _LARGEST // 16:
            raise DataError(f"{self}: too fast, too long, or too many bands; take less")
        empty = int((_triangles(self).sum(1) == 0).sum())
        if empty:
            raise DataError(f"{self.mels} mel bands are too many: {empty} fall between two frequencies; take fewer")

    @property
    def samples(self) -> int:
        """The length of a waveform, in samples."""
        return round(self.seconds * self.sample_rate)

    @property
    def window_samples(self) -> int:
        """The length of a window, in samples."""
        return round(self.window * self.sample_rate)

    @property
    def hop_samples(self) -> int:
        """The distance between two windows, in samples."""
        return round(self.hop * self.sample_rate)

    @property
    def bins(self) -> int:
        """The length of the Fourier transform: the next power of two that holds a window."""
        return int(2 ** math.ceil(math.log2(max(self.window_samples, 2))))


def read_audio(source: Path | io.BytesIO, name: str = "") -> tuple[Tensor, int]:
    """Read a waveform (samples,) in [-1, 1], averaged over channels, and its sample rate.

    What is not a path but bytes in memory has a name, for messages.
    """
    import torch

    soundfile = need("soundfile", "soundfile")
    path = name or str(source)
    if isinstance(source, Path):
        check_file(source)
    try:
        about = soundfile.info(source)
        if about.format not in _FORMATS:
            raise DataError(f"{path}: is a sound in the format {about.format}; convert it to WAV")
        if about.frames * about.channels > _LARGEST:
            raise DataError(f"{path}: {about.frames} samples in {about.channels} channels are too many; cut it up")
        if isinstance(source, io.BytesIO):
            source.seek(0)
        wave, rate = soundfile.read(source, dtype="float32", always_2d=True)
    except DataError:
        raise
    except (RuntimeError, OSError, ValueError, MemoryError) as error:
        raise DataError(f"{path}: not a readable sound ({error}); repair or remove it") from error
    if not len(wave) or len(wave) < about.frames:
        raise DataError(f"{path}: holds {len(wave)} of {about.frames} samples; repair or remove it")
    if _truncated(source):  # libsndfile takes what is there for the whole
        raise DataError(f"{path}: is truncated, after {len(wave)} samples; repair or remove it")
    if not np.isfinite(wave).all():
        raise DataError(f"{path}: holds samples that are not finite; repair or remove it")
    return torch.from_numpy(wave.mean(1)), int(rate)


def _truncated(source: Path | io.BytesIO) -> bool:
    """Return whether a WAV or AIFF file has fewer bytes than its header gives; 0 and the largest number give none."""
    with open(source, "rb") if isinstance(source, Path) else source as file:
        file.seek(0)
        head = file.read(28)  # name, size, "WAVE"; in a RF64 file "ds64", its size, and the size in 64 bits
        length = file.seek(0, os.SEEK_END)
    order: Literal["little", "big"] = "big" if head[:4] in (b"FORM", b"RIFX") else "little"
    if head[:4] == b"RF64":
        size, none = int.from_bytes(head[20:28], order), 2**64 - 1
    elif head[:4] in (b"RIFF", b"RIFX", b"FORM"):
        size, none = int.from_bytes(head[4:8], order), 2**32 - 1
    else:
        return False  # the format tells by itself
    return 0 < size < none and length < size + 8


def fixed_length(wave: Tensor, rate: int, transform: AudioTransform) -> Tensor:
    """Return the waveform (samples,) at the transform's rate (polyphase filter), shortened or padded with silence."""
    import torch

    if not 1 <= rate <= _FASTEST:
        raise DataError(f"a sample rate of {rate} Hz is none that is known; resample it to at most {_FASTEST} Hz")
    if rate != transform.sample_rate:
        common = math.gcd(rate, transform.sample_rate)
        up, down = transform.sample_rate // common, rate // common
        # Without what comes after the result: the filter reaches ten periods of the lower rate to either side.
        wave = wave[: math.ceil(transform.samples * down / up) + 20 * math.ceil(max(1, down / up))]
        resampled = need("scipy.signal", "scipy").resample_poly(wave.numpy(), up, down)
        wave = torch.from_numpy(np.ascontiguousarray(resampled, dtype=np.float32))
    wave = wave[: transform.samples]
    return torch.nn.functional.pad(wave, (0, transform.samples - len(wave)))


def log_mel(waves: Tensor, transform: AudioTransform) -> Tensor:
    """Return log-mel spectrograms (N, 1, mels, frames) of waveforms (N, samples).

    `log(M |STFT|^2 + 1e-6)`, Hann window, triangular filters M on the mel scale `2595 log10(1 + f / 700)`; then
    `(. - mean) / std`.
    """
    import torch

    spectrum = torch.stft(
        waves,
        transform.bins,
        transform.hop_samples,
        transform.window_samples,
        torch.hann_window(transform.window_samples, device=waves.device),
        center=True,
        pad_mode="constant",
        return_complex=True,
    )  # (N, bins / 2 + 1, frames)
    power = spectrum.real.square() + spectrum.imag.square()
    mel = mel_filters(transform).to(waves.device) @ power  # (N, mels, frames)
    return (((mel + 1e-6).log() - transform.mean) / transform.std)[:, None]


@functools.lru_cache
def mel_filters(transform: AudioTransform) -> Tensor:
    """Return filters (mels, bins / 2 + 1): triangles between neighbouring points, equally spaced on the mel scale."""
    import torch

    return torch.from_numpy(_triangles(transform))


def _triangles(transform: AudioTransform) -> np.ndarray:
    top = 2595 * math.log10(1 + transform.sample_rate / 2 / 700)
    points = 700 * (10 ** (np.linspace(0, top, transform.mels + 2) / 2595) - 1)  # Hz
    frequencies = np.linspace(0, transform.sample_rate / 2, transform.bins // 2 + 1)
    low, centre, high = points[:-2, None], points[1:-1, None], points[2:, None]
    rising = (frequencies - low) / (centre - low)
    falling = (high - frequencies) / (high - centre)
    return np.minimum(rising, falling).clip(min=0).astype(np.float32)
