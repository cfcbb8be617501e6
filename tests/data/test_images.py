import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from formats import pixels, write_image
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from spcp import data
from spcp.data.images import as_image, eval_pixels, open_image, random_box, train_pixels, with_channels

GREY = ((0.5,), (0.5,))
RGB = ((0.5,) * 3, (0.5,) * 3)


def resized(image: np.ndarray, height: int, width: int) -> np.ndarray:
    """Bilinear with antialias, from its definition: a triangle as wide as the step between two output pixels."""

    def weights(source: int, target: int) -> np.ndarray:
        step = source / target
        reach = max(step, 1.0)
        out = np.zeros((target, source))
        for i in range(target):
            centre = (i + 0.5) * step
            for j in range(source):
                out[i, j] = max(0.0, 1 - abs(j + 0.5 - centre) / reach)
            out[i] /= out[i].sum()
        return out

    rows, columns = weights(image.shape[0], height), weights(image.shape[1], width)
    return np.einsum("ia,jb,abc->ijc", rows, columns, image.astype(np.float64))


@pytest.mark.parametrize(
    ("height", "width", "resize", "crop"),
    [(30, 40, 16, 16), (40, 30, 16, 12), (33, 17, 32, 32), (28, 28, 32, 32), (50, 20, 24, 20), (32, 32, 32, 32)],
)
def test_the_test_transform_is_its_definition(height: int, width: int, resize: int, crop: int) -> None:
    image = np.asarray(Image.fromarray(pixels(5, 6, 3)).resize((width, height), Image.Resampling.BICUBIC))
    got = eval_pixels(Image.fromarray(image), data.ImageTransform(resize, crop, *RGB))
    short = min(height, width)
    full = resized(image, int(resize * height / short), int(resize * width / short))
    top, left = (round((side - crop) / 2) for side in full.shape[:2])
    expected = full[top : top + crop, left : left + crop]
    assert got.shape == (crop, crop, 3)
    assert np.abs(got - expected).max() <= 1.01  # Pillow rounds to a grey level after each of its two passes


def test_an_image_of_the_right_size_is_left_alone() -> None:
    image = pixels(32, 32, 3)
    assert np.array_equal(eval_pixels(Image.fromarray(image), data.ImageTransform(32, 32, *RGB)), image)


def test_modes() -> None:
    transform = data.ImageTransform(8, 8, *RGB)
    grey = pixels(8, 8)
    assert np.array_equal(eval_pixels(Image.fromarray(grey), transform), np.stack([grey] * 3, -1))
    deep = Image.fromarray((grey.astype(np.uint16) << 8) + 77)  # 16 bits: the high byte counts
    assert np.array_equal(np.asarray(with_channels(deep, 1)), grey)
    with pytest.raises(data.DataError, match="32-bit pixels"):
        with_channels(Image.fromarray(grey.astype(np.float32)), 1)
    colour = Image.fromarray(pixels(8, 8, 3))
    assert np.array_equal(
        eval_pixels(colour, data.ImageTransform(8, 8, *GREY))[:, :, 0], np.asarray(colour.convert("L"))
    )
    clear = colour.convert("RGBA")
    assert np.array_equal(eval_pixels(clear, transform), np.asarray(colour))


def test_arrays_become_images() -> None:
    planar = pixels(3, 5, 7)
    assert np.array_equal(np.asarray(as_image(planar, "x")), planar.transpose(1, 2, 0))
    assert np.array_equal(np.asarray(as_image(planar.transpose(1, 2, 0), "x")), planar.transpose(1, 2, 0))
    assert np.array_equal(np.asarray(as_image(planar[:1], "x")), planar[0])
    with pytest.raises(data.DataError, match="item 3: an array of int64 and shape"):
        as_image(np.zeros((5, 5), np.int64), "item 3")


def test_bad_files_are_named(tmp_path: Path) -> None:
    write_image(tmp_path / "whole.jpg", (200, 200))
    content = (tmp_path / "whole.jpg").read_bytes()
    for name, bad in {
        "cut.jpg": content[:-200],
        "empty.jpg": b"",
        "text.png": b"hello",
        "magic.png": b"\x89PNX" + content,
    }.items():
        (tmp_path / name).write_bytes(bad)
        with pytest.raises(data.DataError, match=f"{name}: not a readable image .*; repair or remove it"):
            open_image(tmp_path / name)
    with pytest.raises(data.DataError, match=r"none.jpg: there is no such file"):
        open_image(tmp_path / "none.jpg")


def test_a_truncated_image_is_bad_whatever_others_set(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from PIL import ImageFile

    write_image(tmp_path / "a.jpg", (200, 200))
    (tmp_path / "a.jpg").write_bytes((tmp_path / "a.jpg").read_bytes()[:-200])
    monkeypatch.setattr(ImageFile, "LOAD_TRUNCATED_IMAGES", True)
    with pytest.raises(data.DataError, match=r"a.jpg: not a readable image"):
        open_image(tmp_path / "a.jpg")
    assert ImageFile.LOAD_TRUNCATED_IMAGES  # theirs again


def test_a_strip_that_would_become_huge() -> None:
    with pytest.raises(data.DataError, match="1 x 8000 pixels would become 256 x 2048000"):
        eval_pixels(Image.new("RGB", (1, 8000)), data.ImageTransform(256, 224, *RGB))


@given(st.integers(1, 300), st.integers(1, 300), st.integers(0, 10**6))
def test_random_boxes(width: int, height: int, seed: int) -> None:
    left, top, right, bottom = random_box(width, height, np.random.default_rng(seed))
    assert 0 <= left < right <= width
    assert 0 <= top < bottom <= height


def test_random_boxes_are_spread_as_they_should() -> None:
    rng = np.random.default_rng(0)
    boxes = [random_box(1000, 1000, rng) for _ in range(5000)]
    areas = np.array([(r - x) * (b - t) / 1e6 for x, t, r, b in boxes])
    ratios = np.array([math.log((r - x) / (b - t)) for x, t, r, b in boxes])
    assert 0.079 < areas.min() < 0.1
    # Uniform in [0.08, 1] and log-uniform in [3/4, 4/3], given that the box fits, which is area <= exp(-|log ratio|).
    limit = np.exp(-np.linspace(0, math.log(4 / 3), 10_000))
    assert abs(areas.mean() - ((limit**2 - 0.08**2) / 2).mean() / (limit - 0.08).mean()) < 0.01
    assert abs(ratios).max() < math.log(4 / 3) + 0.02
    assert abs(ratios.mean()) < 0.01
    assert len({x for x, *_ in boxes}) > 500


@pytest.mark.parametrize(("border", "mode"), [("black", "constant"), ("reflect", "reflect")])
def test_augmentations(border: Any, mode: Any) -> None:
    image = Image.fromarray(pixels(50, 60, 3))
    transform = data.ImageTransform(40, 40, *RGB, padding=3, border=border)
    plain = eval_pixels(image, transform)
    padded = np.pad(plain, ((3, 3), (3, 3), (0, 0)), mode)
    windows = {
        (padded[top : top + 40, left : left + 40][:, ::step]).tobytes(): (top, left, step)
        for top in range(7)
        for left in range(7)
        for step in (1, -1)
    }
    seen = {windows[train_pixels(image, transform, np.random.default_rng(i)).tobytes()] for i in range(1500)}
    assert len(seen) == 98  # every place, mirrored and not
    flipless = data.ImageTransform(40, 40, *RGB, padding=3, flip=False, border=border)
    assert all(windows[train_pixels(image, flipless, np.random.default_rng(i)).tobytes()][2] == 1 for i in range(50))
    none = data.ImageTransform(40, 40, *RGB, augment="none")
    assert np.array_equal(train_pixels(image, none, np.random.default_rng(0)), plain)
    box = data.ImageTransform(40, 32, *RGB, augment="resized_crop")
    assert train_pixels(image, box, np.random.default_rng(0)).shape == (32, 32, 3)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"mean": (0.5, 0.5), "std": (0.5, 0.5)}, "1 or 3 values each"),
        ({"mean": (0.5,), "std": (0.0,)}, "std must be positive"),
        ({"crop": 64}, "crop must be at least 1 and at most resize"),
        ({"augment": "cutout"}, "augment must be"),
        ({"padding": -1}, "padding must be from 0 to 16384, not -1"),
        ({"padding": 10**6}, "padding must be from 0 to 16384, not 1000000"),
        ({"resize": 10**6}, "resize must be at most 16384 pixels, not 1000000"),
        ({"std": (math.nan,)}, "std must be 1 or 3 numbers"),
        ({"mean": (math.inf,)}, "mean must be 1 or 3 numbers"),
        ({"padding": "4"}, "padding must be a whole number of pixels, not '4'"),
        ({"border": "white"}, 'border must be "black" or "reflect"'),
        ({"border": "reflect", "padding": 16}, "padding must be below half of crop to reflect the image, not 16"),
        ({"crop": 3.5}, "crop must be a whole number"),
        ({"mean": ("a",)}, "mean must be 1 or 3 numbers"),
        ({"mean": 0.5}, "mean must be 1 or 3 numbers"),
    ],
)
def test_bad_transforms(options: dict[str, object], message: str) -> None:
    with pytest.raises(data.DataError, match=message):
        data.ImageTransform(**({"resize": 32, "crop": 32, "mean": (0.5,), "std": (0.5,)} | options))  # type: ignore[arg-type]


def test_an_image_that_cannot_be_made_grey(tmp_path: Path) -> None:
    Image.new("LAB", (16, 16)).save(tmp_path / "a.tiff")
    grey = data.ImageTransform(8, 8, (0.5,), (0.5,))
    with pytest.raises(data.DataError, match=r"a.tiff: an image of mode LAB cannot be made L .*; convert it"):
        list(data.Loader(data.read_folder(tmp_path), grey, cache=False))


@pytest.mark.parametrize("ending", ["jpg", "png", "webp"])
@pytest.mark.parametrize("orientation", range(1, 9))
def test_photos_are_upright(tmp_path: Path, ending: str, orientation: int) -> None:
    upright = Image.fromarray(pixels(6, 9, 3)).resize((90, 60), Image.Resampling.NEAREST)
    # How a camera that was held so stores the picture: the inverse of what EXIF says has to be done.
    turn = Image.Transpose
    inverse = {2: turn.FLIP_LEFT_RIGHT, 3: turn.ROTATE_180, 4: turn.FLIP_TOP_BOTTOM, 5: turn.TRANSPOSE}
    inverse |= {6: turn.ROTATE_90, 7: turn.TRANSVERSE, 8: turn.ROTATE_270}
    stored = upright.transpose(inverse[orientation]) if orientation in inverse else upright
    exif = Image.Exif()
    exif[0x0112] = orientation
    path = tmp_path / f"a.{ending}"
    stored.save(path, exif=exif, quality=95)
    seen = np.asarray(open_image(path).convert("RGB")).astype(int)
    assert seen.shape == (60, 90, 3)
    assert abs(seen - np.asarray(upright)).mean() < 12
    item = as_image(Image.open(path), "an item")  # of another library's data set
    assert np.array_equal(np.asarray(item.convert("RGB")), seen)
    again = as_image(open_image(path), "a file")  # not turned twice
    assert np.array_equal(np.asarray(again.convert("RGB")), seen)


def test_damaged_exif_data_costs_nothing_but_the_orientation(tmp_path: Path) -> None:
    original = pixels(8, 9, 3)
    for damaged in (b"Exif\0\0XXXXXXXXXXXX", b"Exif\0\0"):
        Image.fromarray(original).save(tmp_path / "a.png", exif=damaged)
        assert np.array_equal(np.asarray(open_image(tmp_path / "a.png")), original)
