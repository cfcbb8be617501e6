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


def test_a_sound_that_is_not_finite(tmp_path: Path) -> None:
    wave = np.array([0.1, np.nan, 0.2] * 100, np.float32)
    pytest.importorskip("soundfile").write(tmp_path / "nan.wav", wave, 8000, subtype="FLOAT")
    with pytest.raises(data.DataError, match=r"nan.wav: holds samples that are not finite; repair or remove it"):
        read_audio(tmp_path / "nan.wav")


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


@pytest.mark.parametrize("kind", ["WAV", "WAVEX", "RF64", "AIFF", "FLAC", "OGG", "MP3"])
def test_half_a_file_is_refused(tmp_path: Path, kind: str) -> None:
    soundfile = pytest.importorskip("soundfile")
    soundfile.write(tmp_path / "whole.wav", write_sound(tmp_path / "a.wav", seconds=4.0), 8000, format=kind)
    whole = (tmp_path / "whole.wav").read_bytes()
    assert len(read_audio(tmp_path / "whole.wav")[0]) == 32_000
    for length in (len(whole) // 2, len(whole) - len(whole) // 8):
        (tmp_path / "half.wav").write_bytes(whole[:length])
        with pytest.raises(data.DataError, match=r"half.wav: (holds|not a readable|is truncated)"):
            read_audio(tmp_path / "half.wav")


def test_formats_that_do_not_tell_where_they_end_are_refused(tmp_path: Path) -> None:
    soundfile = pytest.importorskip("soundfile")
    soundfile.write(tmp_path / "a.wav", np.zeros(100), 8000, format="AU")
    with pytest.raises(data.DataError, match=r"a.wav: is a sound in the format AU; convert it to WAV"):
        read_audio(tmp_path / "a.wav")


def test_a_small_file_does_not_take_much_memory(tmp_path: Path) -> None:
    """One with a sample rate for which the filter would be billions of numbers long, and one that declares billions."""
    soundfile = pytest.importorskip("soundfile")
    t = data.AudioTransform(sample_rate=16_000, seconds=0.5, mels=20)
    soundfile.write(tmp_path / "fast.wav", np.zeros(1200), 99_999_989)
    write_sound(tmp_path / "long.flac", seconds=0.1)
    content = bytearray((tmp_path / "long.flac").read_bytes())
    content[21] |= 0x0F  # the upper bits of the number of samples
    (tmp_path / "long.flac").write_bytes(content)
    with pytest.raises(data.DataError, match=r"long.flac: \d{11} samples in 1 channels are too many"):
        read_audio(tmp_path / "long.flac")
    wave, rate = read_audio(tmp_path / "fast.wav")
    assert rate == 99_999_989
    for rate in (99_999_989, 0, -8000):
        with pytest.raises(data.DataError, match=f"a sample rate of {rate} Hz is none that is known"):
            fixed_length(wave, rate, t)


@pytest.mark.parametrize(("rate", "to"), [(8000, 16000), (44100, 16000), (192_000, 16000), (9_973, 16000), (3, 8000)])
def test_what_comes_after_the_result_is_not_resampled(rate: int, to: int) -> None:
    """A minute or a day of sound costs no more than the half second that is wanted, and gives the same."""
    from scipy.signal import resample_poly

    t = data.AudioTransform(sample_rate=to, seconds=0.5, mels=20)
    wave = torch.randn(max(2 * rate, 1000), generator=torch.Generator().manual_seed(0))
    common = math.gcd(rate, to)
    whole = resample_poly(wave.numpy(), to // common, rate // common)[: to // 2]
    got = fixed_length(wave, rate, t)
    np.testing.assert_array_equal(got[: len(whole)].numpy(), whole.astype(np.float32))
    assert not got[len(whole) :].any()


def test_bad_transforms() -> None:
    for options in ({"seconds": math.inf}, {"mean": math.nan}):
        with pytest.raises(data.DataError, match="the rest numbers"):
            data.AudioTransform(**options)  # type: ignore[arg-type]
    for options in ({"sample_rate": 10**9}, {"seconds": 1e5}, {"window": 50.0, "seconds": 60.0, "mels": 60}):
        with pytest.raises(data.DataError, match="too fast, too long, or too many bands"):
            data.AudioTransform(**options)  # type: ignore[arg-type]
    for options in ({"mels": 0}, {"sample_rate": 8000.5}, {"hop": "x"}):
        with pytest.raises(data.DataError, match="must be positive whole numbers, the rest numbers"):
            data.AudioTransform(**options)  # type: ignore[arg-type]
    with pytest.raises(data.DataError, match="the length must hold a window"):
        data.AudioTransform(seconds=0.01)
    with pytest.raises(data.DataError, match="400 mel bands are too many"):
        data.AudioTransform(mels=400)
