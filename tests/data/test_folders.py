import os
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest
from formats import pixels, write_image, write_sound, write_tin
from PIL import Image

from spcp import data
from spcp.data.images import open_image


def test_images_by_class(tmp_path: Path) -> None:
    for name in ("dog/b.JPG", "dog/a.png", "cat/deep/c.jpeg", "10/x.bmp", "9/x.webp"):
        write_image(tmp_path / name, seed=len(name))
    (tmp_path / "dog" / "notes.txt").write_text("not an image")
    (tmp_path / ".hidden").mkdir()
    write_image(tmp_path / ".hidden" / "a.png")
    files = data.read_folder(tmp_path)
    assert files.class_names == ("9", "10", "cat", "dog")  # numbers by value, then names
    assert [(path, files.class_names[k]) for path, k in zip(files.paths, files.y.tolist(), strict=True)] == [
        ("10/x.bmp", "10"),
        ("9/x.webp", "9"),
        ("cat/deep/c.jpeg", "cat"),
        ("dog/a.png", "dog"),
        ("dog/b.JPG", "dog"),
    ]
    image, label = files[3]
    assert isinstance(image, Image.Image)
    assert label == 3
    assert data.histogram(files) == {"9": 1, "10": 1, "cat": 1, "dog": 2}


def test_what_is_left_out_is_counted_and_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "photos"
    for i in range(12):
        write_image(folder / "cat" / f"{i}.png", seed=i)
        write_image(folder / "dog" / f"{i}.png", seed=100 + i)
    assert data.read_folder(folder).notes == ()
    for name in ("cat/.DS_Store", "dog/.DS_Store", "cat/Thumbs.db", "dog/list.txt", "__MACOSX/cat/._0.png"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(b"x")
    (note,) = data.make_benchmark(folder, size=16).notes  # no warning: this is harmless
    assert note == f"{folder}: left out: 2 .DS_Store, 1 __MACOSX, 1 Thumbs.db, 1 *.txt"
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)  # as if pillow-heif were not installed
    (folder / "eel").mkdir()
    for name in ("cat/a.HEIC", "cat/b.heic", "eel/c.mov"):
        (folder / name).write_bytes(b"x")
    with pytest.warns(UserWarning) as warned:  # noqa: PT030
        benchmark = data.make_benchmark(folder, size=16)
    notes = [
        f"{folder}: left out: 2 .DS_Store, 2 *.heic, 1 __MACOSX, 1 Thumbs.db, 1 *.txt, 1 *.mov"
        "; pip install 'spcp[heic]' reads HEIC",
        f"{folder / 'eel'}: holds no image files, so it is no class; fill or remove it",
    ]
    assert [str(warning.message) for warning in warned] == list(benchmark.notes) == notes
    assert benchmark.class_names == ("cat", "dog")
    assert all(f"note: {note}" in benchmark.summary() for note in notes)
    with pytest.raises(data.DataError, match=r"holds no image files .*left out: 1 \*.mov; check the path"):  # noqa: SIM117
        with pytest.warns(UserWarning, match=r"1 \*.mov"):
            data.read_folder(folder / "eel")


def test_a_zip_of_macos_keeps_its_parts(tmp_path: Path) -> None:
    for part in ("train", "test"):
        for i in range(4):
            write_image(tmp_path / "set" / part / "ab"[i % 2] / f"{part}{i}.png", seed=i)
    (tmp_path / "set" / "__MACOSX").mkdir()
    assert [len(part) for part in data.make_benchmark(tmp_path / "set", size=16).sets().values()] == [4, 4]


def test_heic(tmp_path: Path) -> None:
    pillow_heif = pytest.importorskip("pillow_heif")
    pillow_heif.register_heif_opener()
    original = write_image(tmp_path / "cat" / "a.png", (64, 48))
    Image.fromarray(original).save(tmp_path / "cat" / "a.HEIC", quality=95)
    files = data.read_folder(tmp_path)
    assert files.paths == ("cat/a.HEIC", "cat/a.png")
    image = files[0][0]
    assert image.size == (64, 48)
    assert abs(np.asarray(image.convert("RGB")).astype(int) - original).mean() < 4


def test_heic_without_the_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a.heic").write_bytes(b"x")
    monkeypatch.setitem(sys.modules, "pillow_heif", None)
    with pytest.raises(data.DataError, match=r"a.heic: this needs pillow-heif: pip install 'spcp\[heic\]'"):
        open_image(tmp_path / "a.heic")


def test_links_that_lead_back_up(tmp_path: Path) -> None:
    write_image(tmp_path / "set" / "cat" / "a.png")
    (tmp_path / "set" / "cat" / "up").symlink_to("..")
    (tmp_path / "set" / "cat" / "here").symlink_to(".")
    (tmp_path / "set" / "dog").symlink_to("cat")  # a folder by another name is a class too
    files = data.read_folder(tmp_path / "set")
    assert files.paths == ("cat/a.png", "dog/a.png")


def test_pipes_are_not_waited_for(tmp_path: Path) -> None:
    write_image(tmp_path / "a.png")
    os.mkfifo(tmp_path / "b.png")
    assert data.read_folder(tmp_path).paths == ("a.png",)
    with pytest.raises(data.DataError, match=r"b.png: is a folder, a pipe or a device, not a file"):
        open_image(tmp_path / "b.png")


def test_a_flat_folder_is_unlabelled(tmp_path: Path) -> None:
    write_image(tmp_path / "a.png")
    write_image(tmp_path / "b.png")
    assert data.read_folder(tmp_path).y.tolist() == [-1, -1]
    write_image(tmp_path / "cat" / "c.png")
    with pytest.raises(data.DataError, match=r"a.png: lies beside the class folders"):
        data.read_folder(tmp_path)


def test_classes_in_names(tmp_path: Path) -> None:
    for name in ("7_anna_0.wav", "7_anna_1.wav", "3_bob_0.wav"):
        write_sound(tmp_path / name)
    files = data.read_folder(tmp_path, label=r"(\d+)_[^/]*$")
    assert files.kind == "audio"
    assert files.class_names == ("3", "7")
    assert files.y.tolist() == [0, 1, 1]
    with pytest.raises(data.DataError, match=r"3_bob_0.wav: the label pattern '\(x\)' does not match"):
        data.read_folder(tmp_path, label="(x)")
    with pytest.raises(data.DataError, match="must be a regular expression with one group"):
        data.read_folder(tmp_path, label="(")
    with pytest.raises(data.DataError, match="must be a regular expression with one group"):
        data.read_folder(tmp_path, label="anna|bob")
    with pytest.raises(data.DataError, match="the class '3' is none of the 1 given"):
        data.read_folder(tmp_path, label=r"(\d)", class_names=["7"])


def test_folders_that_will_not_do(tmp_path: Path) -> None:
    with pytest.raises(data.DataError, match="holds no image files"):
        data.read_folder(tmp_path)
    with pytest.raises(data.DataError, match="nowhere: there is no such folder"):
        data.read_folder(tmp_path / "nowhere")
    write_image(tmp_path / "a.png")
    write_sound(tmp_path / "a.wav")
    with pytest.raises(data.DataError, match="holds both images and sounds"):
        data.read_folder(tmp_path)
    assert data.read_folder(tmp_path, kind="audio").paths == ("a.wav",)


def test_imglist(tmp_path: Path) -> None:
    write_image(tmp_path / "images" / "tin" / "a.png")
    write_image(tmp_path / "images" / "tin" / "b.png")
    (tmp_path / "list.txt").write_text("tin/b.png 3\n\ntin/a.png -1\n")
    files = data.read_imglist(tmp_path / "list.txt", tmp_path / "images")
    assert files.paths == ("tin/b.png", "tin/a.png")
    assert files.y.tolist() == [3, -1]
    assert files.split == "OpenOOD's list"


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("tin/a.png", r"line 2 \('tin/a.png'\) has no label"),
        ("tin/a.png cat", "line 2 .* has the label 'cat', which is no class number and not -1"),
        ("tin/a.png -3", "line 2 .* has the label '-3'"),
        ("tin/a.png 1.5", "line 2 .* has the label '1.5'"),
        ("../secret.png 1", "line 2 .* leads out of the data folder"),
        ("tin/../../secret.png 1", "leads out of the data folder"),
        ("/etc/passwd 1", "leads out of the data folder"),
        ("..\\secret.png 1", "leads out of the data folder"),
        ("C:/secret.png 1", "leads out of the data folder"),
    ],
)
def test_bad_lines(tmp_path: Path, line: str, message: str) -> None:
    write_image(tmp_path / "tin" / "a.png")
    (tmp_path / "list.txt").write_text(f"tin/a.png 0\n{line}\n")
    with pytest.raises(data.DataError, match=message):
        data.read_imglist(tmp_path / "list.txt", tmp_path)
    with pytest.warns(UserWarning, match="1 lines left out, such as line 2"):
        assert data.read_imglist(tmp_path / "list.txt", tmp_path, bad="skip").paths == ("tin/a.png",)


def test_imglist_with_missing_images(tmp_path: Path) -> None:
    write_image(tmp_path / "a..b.png")  # two dots in a name lead nowhere
    (tmp_path / "list.txt").write_text("a..b.png 0\nc.png 1\nd.png 1\n")
    with pytest.raises(data.DataError, match=r"2 of 3 images are not below .*, such as c.png"):
        data.read_imglist(tmp_path / "list.txt", tmp_path)
    with pytest.warns(UserWarning, match="2 of 3 images"):
        files = data.read_imglist(tmp_path / "list.txt", tmp_path, bad="skip")
    assert files.paths == ("a..b.png",)
    assert files.y.tolist() == [0]
    (tmp_path / "list.txt").write_bytes(pixels(100).tobytes())
    with pytest.raises(data.DataError, match=r"not a text file|has no label"):
        data.read_imglist(tmp_path / "list.txt", tmp_path)
    (tmp_path / "list.txt").write_text("\n")
    with pytest.raises(data.DataError, match="names no image"):
        data.read_imglist(tmp_path / "list.txt", tmp_path)


def test_tiny_imagenet(tmp_path: Path) -> None:
    write_tin(tmp_path / "tin", ["n02", "n01"])
    test = data.read_tin(tmp_path / "tin", "test")
    assert test.class_names == ("n01", "n02")
    assert test.paths == ("val_0.JPEG", "val_1.JPEG", "val_2.JPEG", "val_3.JPEG")
    assert test.y.tolist() == [1, 0, 1, 0]
    assert data.read_tin(tmp_path / "tin", "train").class_names == ("n02",)
    assert len(data.read(tmp_path / "tin")) == 4
    (tmp_path / "tin/val/images/val_2.JPEG").unlink()
    with pytest.raises(data.DataError, match=r"val_2.JPEG is listed but missing"):
        data.read_tin(tmp_path / "tin", "test")
    for name in ("val_2.JPEG", "val_4.JPEG"):
        shutil.copy(tmp_path / "tin/val/images/val_0.JPEG", tmp_path / "tin/val/images" / name)
    with pytest.raises(data.DataError, match="5 images but 4 labels"):
        data.read_tin(tmp_path / "tin", "test")
    (tmp_path / "tin/val/val_annotations.txt").write_text("val_0.JPEG\n")
    with pytest.raises(data.DataError, match=r"val_annotations.txt: line 1 has no class"):
        data.read_tin(tmp_path / "tin", "test")


def test_textures(tmp_path: Path) -> None:
    for name in ("banded/banded_0002.jpg", "zigzagged/zigzagged_0001.jpg"):
        write_image(tmp_path / "dtd" / "images" / name)
    files = data.read_texture(tmp_path / "dtd")
    assert data.histogram(files) == {"banded": 1, "zigzagged": 1}
    assert data.read(tmp_path / "dtd").name == "texture"


def test_places365(tmp_path: Path) -> None:
    for i in (1, 2):
        write_image(tmp_path / "p" / "val_256" / f"Places365_val_0000000{i}.jpg")
    assert data.read_places365(tmp_path / "p").y.tolist() == [-1, -1]
    (tmp_path / "p" / "places365_val.txt").write_text("Places365_val_00000001.jpg 165\nPlaces365_val_00000002.jpg 7\n")
    assert data.read_places365(tmp_path / "p").y.tolist() == [165, 7]
    assert data.read(tmp_path / "p").name == "places365"
    (tmp_path / "p" / "places365_val.txt").write_text("Places365_val_00000001.jpg 165\n")
    with pytest.raises(data.DataError, match=r"has no label for Places365_val_00000002.jpg"):
        data.read_places365(tmp_path / "p")


def test_paths_that_are_nothing(tmp_path: Path) -> None:
    with pytest.raises(data.DataError, match="there is no such file or folder"):
        data.read(tmp_path / "none")
    (tmp_path / "a.csv").write_text("1,2")
    with pytest.raises(data.DataError, match=r"a.csv: not a format that can be read"):
        data.read(tmp_path / "a.csv")


def test_names_of_classes_are_text(tmp_path: Path) -> None:
    """A folder's name need not be UTF-8, and may hold what commands a terminal; a class can be printed anywhere."""
    for name in ("a\x1b[2J", os.fsdecode(b"caf\xe9")):
        (tmp_path / name).mkdir()
        write_image(tmp_path / name / "0.png")
    listed = data.read_folder(tmp_path)
    assert listed.class_names == (r"a\x1b[2J", r"caf\udce9")
    assert len(listed) == 2
    assert all((listed.root / path).is_file() for path in listed.paths)


def test_tiny_imagenet_with_other_class_names(tmp_path: Path) -> None:
    write_tin(tmp_path, ["n02", "n01"])
    expected = data.read_tin(tmp_path, "test")
    (tmp_path / "wnids.txt").write_text("n01\nn03\n")
    with pytest.raises(data.DataError, match=r"names a class that wnids.txt does not; download the data set again"):
        data.read_tin(tmp_path, "test")
    (tmp_path / "wnids.txt").unlink()
    again = data.read_tin(tmp_path, "test")
    assert (again.class_names, again.y.tolist()) == (expected.class_names, expected.y.tolist())
