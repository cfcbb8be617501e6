"""How images are prepared: the benchmark's test transform exactly, and its augmentations.

Files are turned upright. The test transform is `RGB, resize the short side (antialiased), centre crop, scale to [0, 1],
normalise`. All but the last two steps end in bytes, so an image that is prepared once can be kept as bytes with nothing
lost.
"""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from .errors import DataError, check_file, need

HEIC = {".heic", ".heif"}  # as phones write them: Pillow needs pillow-heif for them
_LENIENT = "LOAD_TRUNCATED_IMAGES"  # Pillow's switch
_LARGEST = 1 << 14  # pixels of a side, after resizing
_ORIENTATION = 0x0112  # in EXIF


class TooManyPixelsError(DataError):
    """An image is larger than it may be, as its header says; nothing was decoded."""


@dataclass(frozen=True)
class ImageTransform:
    """How images are prepared for a network; as many channels as `mean` has values (1: grey, 3: RGB).

    In training, "crop" crops at a random place after padding, as for CIFAR; "resized_crop" takes a random box of 8 to
    100 % of the area and resizes it, as for ImageNet; "none" leaves the test transform.
    """

    resize: int  # short side
    crop: int
    mean: tuple[float, ...]  # of pixels in [0, 1]
    std: tuple[float, ...]
    augment: Literal["crop", "resized_crop", "none"] = "crop"
    padding: int = 4  # of "crop"
    border: Literal["black", "reflect"] = "black"  # what it is padded with
    flip: bool = True
    interpolation: Literal["nearest", "bilinear", "bicubic", "lanczos"] = "bilinear"
    squash: bool = False  # resize both sides, whatever the aspect, as some networks of Hugging Face do

    def __post_init__(self) -> None:
        for name in ("mean", "std"):
            value = getattr(self, name)
            if not isinstance(value, list | tuple) or not all(
                isinstance(v, int | float) and abs(v) < 1e9 for v in value
            ):
                raise DataError(f"{name} must be 1 or 3 numbers, not {value!r}")
            object.__setattr__(self, name, tuple(map(float, value)))
        for name in ("resize", "crop", "padding"):
            if not isinstance(getattr(self, name), int) or isinstance(getattr(self, name), bool):
                raise DataError(f"{name} must be a whole number of pixels, not {getattr(self, name)!r}")
        if not 0 <= self.padding <= _LARGEST:
            raise DataError(f"padding must be from 0 to {_LARGEST}, not {self.padding}")
        if len(self.mean) != len(self.std) or len(self.mean) not in (1, 3):
            raise DataError(f"mean and std must have 1 or 3 values each, not {len(self.mean)} and {len(self.std)}")
        if min(self.std) <= 0:
            raise DataError(f"std must be positive, not {self.std}")
        if self.resize > _LARGEST:
            raise DataError(f"resize must be at most {_LARGEST} pixels, not {self.resize}")
        if self.crop < 1 or self.resize < self.crop:
            raise DataError(f"crop must be at least 1 and at most resize, not {self.crop} of {self.resize}")
        if self.augment not in ("crop", "resized_crop", "none"):
            raise DataError(f'augment must be "crop", "resized_crop" or "none", not {self.augment!r}')
        if self.border not in ("black", "reflect"):
            raise DataError(f'border must be "black" or "reflect", not {self.border!r}')
        if self.reflects and 2 * self.padding >= self.crop:
            raise DataError(f"padding must be below half of crop to reflect the image, not {self.padding}")
        if self.interpolation not in ("nearest", "bilinear", "bicubic", "lanczos"):
            kinds = '"nearest", "bilinear", "bicubic" or "lanczos"'
            raise DataError(f"interpolation must be {kinds}, not {self.interpolation!r}")

    @property
    def channels(self) -> int:
        """The number of channels, 1 or 3."""
        return len(self.mean)

    @property
    def reflects(self) -> bool:
        """Whether images are padded with their reflections."""
        return self.border == "reflect"

    @property
    def resampling(self) -> Any:
        """Pillow's name of the interpolation."""
        return getattr(need("PIL.Image", "pillow").Resampling, self.interpolation.upper())


def open_image(
    source: Path | Any, *, name: str = "", formats: Sequence[str] | None = None, max_pixels: float = math.inf
) -> Any:
    """Return a Pillow image, wholly decoded and upright; a file that is truncated or is no image is a `DataError`.

    Args:
        source: a path, or an open file.
        name: what to call it in messages, and for its ending; by default the source.
        formats: those of Pillow's that may be decoded; by default all.
        max_pixels: an image of more is a `TooManyPixelsError`, before it is decoded.
    """
    image_module, file_module = need("PIL.Image", "pillow"), need("PIL.ImageFile", "pillow")
    name = name or str(source)
    if isinstance(source, Path):
        check_file(source)
    lenient = getattr(file_module, _LENIENT)
    setattr(file_module, _LENIENT, False)  # others may have set it, and would get a picture that ends in grey
    try:
        if os.path.splitext(name)[1].lower() in HEIC:
            need("pillow_heif", "pillow-heif", "heic").register_heif_opener()
        with image_module.open(source, formats=formats) as image:
            if image.width * image.height > max_pixels:
                size = f"{image.width} x {image.height}"
                raise TooManyPixelsError(f"{name}: has {size} pixels, more than {max_pixels}; make it smaller")
            image.load()
            return upright(image)
    except ImportError as error:
        raise DataError(f"{name}: {error}") from error
    except TooManyPixelsError:
        raise
    except image_module.DecompressionBombError as error:  # Pillow's own limit, twice what it warns of
        limit = min(max_pixels, 2 * image_module.MAX_IMAGE_PIXELS)
        raise TooManyPixelsError(f"{name}: has more than {limit} pixels; make it smaller") from error
    except Exception as error:  # a damaged file can raise anything
        reason = str(error).partition(" <_io.")[0]  # an open file has no name worth telling
        raise DataError(f"{name}: not a readable image ({reason}); repair or remove it") from error
    finally:
        setattr(file_module, _LENIENT, lenient)


def upright(image: Any) -> Any:
    """Turn an image as its EXIF orientation says: cameras store what the sensor saw, and how it was held."""
    try:
        turned = image.getexif().get(_ORIENTATION, 1) != 1
        return need("PIL.ImageOps", "pillow").exif_transpose(image) if turned else image
    except Exception:  # Pillow raises a dozen kinds on damaged EXIF data; the pixels are there all the same
        return image


def as_image(sample: Any, where: str) -> Any:
    """Return a Pillow image of an image, or of bytes (H, W), (C, H, W) or (H, W, C)."""
    image_module = need("PIL.Image", "pillow")
    if isinstance(sample, image_module.Image):
        return upright(sample)
    pixels = np.asarray(sample)
    if pixels.dtype != np.uint8 or pixels.ndim not in (2, 3):
        raise DataError(f"{where}: an array of {pixels.dtype} and shape {pixels.shape} is no image of bytes")
    if pixels.ndim == 3 and pixels.shape[0] in (1, 3):
        pixels = pixels.transpose(1, 2, 0)
    if pixels.ndim == 3 and pixels.shape[2] == 1:
        pixels = pixels[:, :, 0]
    return image_module.fromarray(np.ascontiguousarray(pixels))


def with_channels(image: Any, channels: int) -> Any:
    """Return the image in grey or RGB. A 16-bit image keeps its high byte; Pillow itself would saturate at 255."""
    if image.mode.startswith("I;16"):
        image = need("PIL.Image", "pillow").fromarray((np.asarray(image) >> 8).astype(np.uint8))
    elif image.mode in ("I", "F"):
        raise DataError(
            f"an image of mode {image.mode} (32-bit pixels) has no range to scale from; save it with 8 or 16 bits"
        )
    mode = "L" if channels == 1 else "RGB"
    try:
        return image if image.mode == mode else image.convert(mode)
    except ValueError as error:
        raise DataError(f"an image of mode {image.mode} cannot be made {mode} ({error}); convert it") from error


def eval_pixels(image: Any, transform: ImageTransform) -> np.ndarray:
    """Return bytes (crop, crop, C) by the test transform: short side to `resize`, then the centre.

    Pillow resizes the rows, rounds, and then the columns. So does this, but for the columns that the crop drops.
    """
    image_module = need("PIL.Image", "pillow")
    image = with_channels(image, transform.channels)
    if transform.squash:
        image = image.resize((transform.resize, transform.resize), transform.resampling)
    short = min(image.size)
    width, height = (transform.resize if side == short else int(transform.resize * side / short) for side in image.size)
    if width * height > (image_module.MAX_IMAGE_PIXELS or math.inf):
        raise DataError(f"an image of {image.width} x {image.height} pixels would become {width} x {height}; remove it")
    left, top = (round((side - transform.crop) / 2.0) for side in (width, height))
    if width != image.width:
        image = image.resize((width, image.height), transform.resampling)
    image = image.crop((left, 0, left + transform.crop, image.height))
    if height != image.height:
        image = image.resize((transform.crop, height), transform.resampling)
    return _pixels(image.crop((0, top, transform.crop, top + transform.crop)))


def train_pixels(image: Any, transform: ImageTransform, rng: np.random.Generator) -> np.ndarray:
    """Return bytes (crop, crop, C), augmented."""
    if transform.augment == "resized_crop":
        image = with_channels(image, transform.channels)
        box = random_box(image.width, image.height, rng)
        pixels = _pixels(image.crop(box).resize((transform.crop, transform.crop), transform.resampling))
    else:
        pixels = eval_pixels(image, transform)
    flip = transform.flip and transform.augment != "none" and rng.random() < 0.5
    if transform.augment == "crop":
        pad = transform.padding
        left, top = rng.integers(0, 2 * pad + 1, size=2)
        mode: Literal["constant", "reflect"] = "reflect" if transform.reflects else "constant"
        padded = np.pad(pixels, ((pad, pad), (pad, pad), (0, 0)), mode)
        pixels = padded[top : top + transform.crop, left : left + transform.crop]
    return pixels[:, ::-1] if flip else pixels


def random_box(width: int, height: int, rng: np.random.Generator) -> tuple[int, int, int, int]:
    """Draw a box of 8 to 100 % of the area with sides 3:4 to 4:3; if ten draws do not fit, the largest such box."""
    for _ in range(10):
        area = width * height * rng.uniform(0.08, 1.0)
        ratio = math.exp(rng.uniform(math.log(3 / 4), math.log(4 / 3)))
        w, h = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
        if 0 < w <= width and 0 < h <= height:
            left, top = int(rng.integers(0, width - w + 1)), int(rng.integers(0, height - h + 1))
            return left, top, left + w, top + h
    w, h = min(width, round(height * 4 / 3)), min(height, round(width * 4 / 3))
    left, top = (width - w) // 2, (height - h) // 2
    return left, top, left + w, top + h


def normalisation(mean: Sequence[float], std: Sequence[float]) -> tuple[np.ndarray, np.ndarray]:
    """Return scale and shift (C, 1, 1), float32, with `x * scale - shift = (x / 255 - mean) / std`."""
    means, deviations = (np.array(values, dtype=np.float32)[:, None, None] for values in (mean, std))
    return 1 / (255 * deviations), means / deviations


def _pixels(image: Any) -> np.ndarray:
    array = np.asarray(image)
    return array if array.ndim == 3 else array[:, :, None]
