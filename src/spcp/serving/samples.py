"""From the bytes of a request to samples that the detector takes, in Pillow and numpy; and why there may be none."""

from __future__ import annotations

import io
import json
from typing import Any

import numpy as np

from ..data.errors import DataError
from ..data.images import ImageTransform, eval_pixels, normalisation, open_image, with_channels
from ..data.inputs import Inputs
from ..errors import InputError
from ..exported import ExportedDetector

FORMATS = ("JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF")  # some others of Pillow's start programs


class RequestError(InputError):
    """What a client sent cannot be answered; the HTTP status says whose fault it is, and whether to try again."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status


class Samples:
    """Make samples of images and of arrays for a detector."""

    def __init__(self, detector: ExportedDetector) -> None:
        about = {"class_names": detector.class_names or ["0"], **detector.inputs}
        self.transform = Inputs.from_json(about).transform
        self.pixels, self.shape = detector.takes_pixels, detector.sample_shape
        if isinstance(self.transform, ImageTransform):
            self.scale, self.shift = normalisation(self.transform.mean, self.transform.std)

    @property
    def takes_images(self) -> bool:
        """Whether images can be prepared for this detector."""
        return isinstance(self.transform, ImageTransform)

    def of_image(self, data: bytes, max_pixels: int, *, name: str = "the image") -> np.ndarray:
        """Return one sample (1, ...) of the bytes of an image file, by the test transform of the network.

        An image of more than `max_pixels` is a `TooManyPixelsError`, before it is decoded.
        """
        if not isinstance(self.transform, ImageTransform):
            raise RequestError(415, f"{name}: the detector does not take images; send arrays {self._shape()} as JSON")
        if not data:
            raise RequestError(400, f"{name}: is empty; send an image, or arrays as JSON")
        image = open_image(io.BytesIO(data), name=name, formats=FORMATS, max_pixels=max_pixels)
        try:
            if self.pixels and None in self.shape:  # it is resized inside
                pixels = np.asarray(with_channels(image, self.transform.channels))
                return pixels.reshape(1, *pixels.shape[:2], -1)
            pixels = eval_pixels(image, self.transform)[None]  # (1, H, W, C)
        except DataError as error:
            raise DataError(f"{name}: {error}") from error
        return pixels if self.pixels else pixels.transpose(0, 3, 1, 2) * self.scale - self.shift

    def of_json(self, data: bytes, max_pixels: int) -> np.ndarray:
        """Return the samples (n, ...) of a JSON array: a sample as the network takes it, or a list of them.

        What has arrived cannot be too large any more, whatever `max_pixels` is.
        """
        try:
            value = json.loads(data)
        except (ValueError, RecursionError) as error:
            raise RequestError(
                400, f"the body is not valid JSON ({error or 'nested too deep'}); send an array"
            ) from error
        try:
            array: np.ndarray[Any, Any] = np.array(value)
        except ValueError as error:
            raise RequestError(422, f"the rows of the array differ in length; send samples {self._shape()}") from error
        right = array.ndim - len(self.shape) in (0, 1) and array.size and array.dtype.kind in "fiu"
        sizes = zip(reversed(self.shape), reversed(array.shape), strict=False)
        if not right or any(size not in (None, given) for size, given in sizes):
            what = f"an array {array.shape}" if array.dtype.kind in "fiu" else "not an array of numbers"
            raise RequestError(422, f"the body is {what}; send a sample {self._shape()}, or a list of such")
        array = array if array.ndim > len(self.shape) else array[None]
        if self.pixels:
            if array.dtype.kind == "f" or array.min() < 0 or array.max() > 255:
                raise RequestError(422, "pixels must be whole numbers from 0 to 255; send such")
            return array.astype(np.uint8)
        with np.errstate(over="ignore"):
            array = array.astype(np.float32)
        if not np.isfinite(array).all():
            raise RequestError(422, "the array holds NaN or infinity; send finite numbers")
        return array

    def _shape(self) -> str:
        return f"({', '.join('any' if size is None else str(size) for size in self.shape)})"
