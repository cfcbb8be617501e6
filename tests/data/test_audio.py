import cmath
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from formats import write_sound

from spcp import data
from spcp.data.audio import fixed_length, mel_filters, read_audio


def slow_log_mel(wave: np.ndarray, t: data.AudioTransform) -> np.ndarray:
    """From the formula: window, Fourier sum, triangles on the mel scale, logarithm; frame by frame."""
    n, hop, width = t.bins, t.hop_samples, t.window_samples
    padded = np.concatenate([np.zeros(n // 2), wave, np.zeros(n // 2)])
    hann = np.zeros(n)
    offset = (n - width) // 2
    for i in range(width):
        hann[offset + i] = 0.5 - 0.5 * math.cos(2 * math.pi * i / width)
    mel = lambda f: 2595 * math.log10(1 + f / 700)  # noqa: E731
    edges = [mel(t.sample_rate / 2) * k / (t.mels + 1) for k in range(t.mels + 2)]
    hertz = [700 * (10 ** (m / 2595) - 1) for m in edges]
    out = []
    for start in range(0, len(wave) + 1, hop):
        frame = padded[start : start + n] * hann
        row = np.zeros(t.mels)
        for b in range(n // 2 + 1):
            power = abs(sum(frame[i] * cmath.exp(-2j * math.pi * b * i / n) for i in range(n) if frame[i])) ** 2
            f = b * t.sample_rate / n
            for k in range(t.mels):
                low, centre, high = hertz[k : k + 3]
                if low < f <= centre:
                    row[k] += power * (f - low) / (centre - low)
                elif centre < f < high:
                    row[k] += power * (high - f) / (high - centre)
        out.append([(math.log(v + 1e-6) - t.mean) / t.std for v in row])
    return np.array(out).T


def test_log_mel_is_its_formula() -> None:
    t = data.AudioTransform(sample_rate=1000, seconds=0.1, mels=5, window=0.05, hop=0.02, mean=-3.0, std=2.0)
    waves = torch.rand(2, t.samples, generator=torch.Generator().manual_seed(0)) - 0.5
    got = data.log_mel(waves, t)
    assert got.shape == (2, 1, 5, 6)
    for wave, picture in zip(waves, got, strict=True):
        np.testing.assert_allclose(picture[0].numpy(), slow_log_mel(wave.double().numpy(), t), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("hertz", [200, 1000, 3000])
def test_a_tone_lights_up_its_band(hertz: float) -> None:
    t = data.AudioTransform(sample_rate=8000, seconds=0.5, mels=30)
    wave = torch.sin(2 * math.pi * hertz * torch.arange(4000) / 8000)[None]
    brightest = int(data.log_mel(wave, t)[0, 0].mean(1).argmax())
    band = mel_filters(t)[brightest].argmax() * 8000 / t.bins
    assert abs(float(band) - hertz) < 0.15 * hertz


@pytest.mark.parametrize("name", ["a.wav", "a.flac"])
@pytest.mark.parametrize("channels", [1, 2])
def test_files(tmp_path: Path, name: str, channels: int) -> None:
    wave = write_sound(tmp_path / name, rate=8000, channels=channels)
    got, rate = read_audio(tmp_path / name)
    assert rate == 8000
    np.testing.assert_allclose(got.numpy(), wave, atol=2**-15)  # 16 bits
    (again, _), label = data.read_folder(tmp_path)[0]
    assert torch.equal(again, got)
    assert label == -1


@pytest.mark.parametrize(("rate", "to"), [(8000, 16000), (44100, 16000), (22050, 8000), (16000, 16000)])
def test_resampling_keeps_the_tone(rate: int, to: int) -> None:
    t = data.AudioTransform(sample_rate=to, seconds=0.5, mels=20)
    tone = lambda r: torch.sin(2 * math.pi * 440 * torch.arange(r) / r)  # noqa: E731
    got = fixed_length(tone(rate), rate, t)
    assert got.shape == (to // 2,)
    inner = slice(200, -200)  # a filter needs a moment to settle at the ends
    np.testing.assert_allclose(got[inner].numpy(), tone(to)[: to // 2][inner].numpy(), atol=0.02)


def test_length() -> None:
    t = data.AudioTransform(sample_rate=1000, seconds=0.1, mels=5, window=0.05)
    wave = torch.arange(1.0, 151)
    assert torch.equal(fixed_length(wave, 1000, t), wave[:100])
    assert torch.equal(fixed_length(wave[:30], 1000, t), torch.cat([wave[:30], torch.zeros(70)]))


def test_bad_sounds(tmp_path: Path) -> None:
    write_sound(tmp_path / "empty.wav", seconds=0)
    (tmp_path / "text.wav").write_text("hello")
    write_sound(tmp_path / "cut.flac", seconds=2.0)
    (tmp_path / "cut.flac").write_bytes((tmp_path / "cut.flac").read_bytes()[:2000])
    for name, message in {
        "empty.wav": "holds 0 of 0 samples",
        "text.wav": "not a readable sound",
        "none.wav": "no such file",
    }.items():
        with pytest.raises(data.DataError, match=f"{name}: .*{message}"):
            read_audio(tmp_path / name)
    for name in ("cut.wav", "cut.aiff"):
        write_sound(tmp_path / name, seconds=2.0)
        (tmp_path / name).write_bytes((tmp_path / name).read_bytes()[:8000])
    for name in ("cut.flac", "cut.wav", "cut.aiff"):
        with pytest.raises(data.DataError, match=f"{name}: (holds|not a readable|is truncated)"):
            read_audio(tmp_path / name)


def test_bad_transforms() -> None:
    for options in ({"mels": 0}, {"sample_rate": 8000.5}, {"hop": "x"}):
        with pytest.raises(data.DataError, match="must be positive whole numbers, the rest numbers"):
            data.AudioTransform(**options)  # type: ignore[arg-type]
    with pytest.raises(data.DataError, match="the length must hold a window"):
        data.AudioTransform(seconds=0.01)
    with pytest.raises(data.DataError, match="400 mel bands are too many"):
        data.AudioTransform(mels=400)
