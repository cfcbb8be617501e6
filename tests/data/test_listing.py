"""Samples are listed when they are needed, in order, each once, and in constant memory."""

from __future__ import annotations

import glob
import io
import os
import random
import tarfile
import tracemalloc
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from spcp import data
from spcp.data import folders
from spcp.data.listing import Listing, matching

IMAGES = data.Inputs(("a", "b"), (3, 8, 8), data.ImageTransform(8, 8, (0.5,) * 3, (0.5,) * 3))


def names(*arguments: object, inputs: data.Inputs = IMAGES, lines: list[str] | None = None) -> list[str]:
    return [sample.name for sample in Listing(list(map(str, arguments)), inputs, lines=lines)]


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    rng = random.Random(0)
    for _ in range(300):
        folder = tmp_path.joinpath(*(rng.choice(("a", "b", "ab", ".c", "d")) for _ in range(rng.randrange(5))))
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{rng.choice('abcd')}{rng.randrange(10)}{rng.choice(('.png', '.PNG', '.txt', ''))}").touch()
    return tmp_path


PATTERNS = ["*.png", "a/*", "*/*.png", "**/*.png", "a/**/b/*.png", "**/a/**/*.PNG", "[ab]/?[0-9].png", "**/ab/*1.*"]


@pytest.mark.parametrize("pattern", PATTERNS)
def test_patterns_match_as_those_of_the_standard_library(
    pattern: str, tree: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """But each once, and not what is in a folder that fits itself."""
    monkeypatch.chdir(tree)
    for prefix in ("", f"{tree}/"):
        found = list(matching(prefix + pattern))
        expected = set(glob.glob(prefix + pattern, recursive=True))
        inside = {path for path in expected if any(path.startswith(f"{other}/") for other in found)}  # in a folder
        assert len(found) == len(set(found))
        assert set(found) == expected - inside
        assert found == sorted(found, key=lambda path: path.split("/"))


def test_what_two_arguments_reach_comes_once(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tree)
    (tree / "a" / "x.png").touch()
    (tree / "a" / "b" / "up").symlink_to(tree / "a")
    (tree / "a" / "x.tar").write_bytes(b"")
    (tree / "a" / ".x.png").touch()
    below = names(tree / "a")
    assert below == sorted(below, key=lambda path: path.split("/"))
    inside = {str(path) for path in (tree / "a").rglob("*") if path.suffix.lower() == ".png"}
    assert set(below) == {path for path in inside if "/up/" not in path and "/." not in path}
    assert names(tree / "a", tree / "a" / "x.tar", tree / "a" / ".x.png")[len(below) :] == [
        *(str(tree / "a" / "x.tar"), str(tree / "a" / ".x.png")),
    ]
    assert not any("/up/" in path for path in matching("**/*.png"))
    for again in ([tree / "a", tree / "a"], [tree / "a", tree / "a" / "x.png"], [tree / "a", f"{tree}/a/**/*.png"]):
        assert names(*again) == below
    assert sorted(names(tree / "a" / "x.png", tree / "a")) == sorted(below)
    assert names("-", lines=["a/x.png\n", "\n", "a/x.png\r\n"]) == ["a/x.png"] * 2  # but each line counts
    monkeypatch.chdir(tree / "a")
    assert names(".") == [os.path.relpath(path) for path in below]


def test_a_large_folder_is_sorted_on_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(folders, "_SORTED", 7)
    written = [f"{i}.png" for i in range(50)] + ["new\nline.png", os.fsdecode(b"caf\xe9.png"), "é.png", "a b.png"]
    for name in written:
        (tmp_path / name).touch()
    for name in ("1", "1.d", "z"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "x.png").touch()
    found = sorted([*written, "1", "1.d", "z"])
    assert [name for name, _ in folders.entries(tmp_path)] == found
    assert {name for name, is_folder in folders.entries(tmp_path) if is_folder} == {"1", "1.d", "z"}
    assert sorted(folders.entries(tmp_path, ordered=False)) == sorted(folders.entries(tmp_path))
    assert len(names(tmp_path)) == len(written) + 3


def test_folders_without_images_say_so(tmp_path: Path) -> None:
    (tmp_path / "shards").mkdir()
    (tmp_path / "shards" / "1.tar").touch()
    (sample,) = Listing([str(tmp_path / "shards")], IMAGES)
    assert "holds no image files" in sample.problem
    assert f"such as '{tmp_path}/shards/*.tar'" in sample.problem
    floats = data.Inputs(("a", "b"), (4,), None)
    np.save(tmp_path / "x.npy", np.zeros((3, 4), np.float32))
    np.save(tmp_path / "y.npy", np.zeros((3, 5), np.float32))
    x, y, z = tmp_path / "x.npy", tmp_path / "y.npy", tmp_path / "z.png"
    z.touch()
    assert names(x, y, z, inputs=floats) == [f"{x}[0]", f"{x}[1]", f"{x}[2]", str(y), str(z)]
    problems = [sample.problem for sample in Listing([str(x), str(y), str(z)], floats)]
    assert problems[:3] == [""] * 3
    assert "its samples are (5,), but the network takes (4,)" in problems[3]
    assert "the network takes floats (4,)" in problems[4]


def test_memory_does_not_grow_with_the_number_of_samples(tmp_path: Path) -> None:
    """Of names in a list, and of files in an archive."""
    (tmp_path / "x.png").touch()

    def lines(count: int) -> Iterator[str]:
        return (f"{tmp_path}/{'x' if i % 2 else i}.png\n" for i in range(count))

    for count in (300, 3000):
        with tarfile.open(tmp_path / f"{count}.tar", "w") as tar:
            for i in range(count):
                tar.addfile(tarfile.TarInfo(f"{i}.png"))

    def peak(listing: Listing, count: int) -> int:
        tracemalloc.start()
        try:
            assert sum(1 for _ in listing) == count
            return tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()

    for few, many in (
        (Listing(["-"], IMAGES, lines=lines(300)), Listing(["-"], IMAGES, lines=lines(20_000))),
        (Listing([str(tmp_path / "300.tar")], IMAGES), Listing([str(tmp_path / "3000.tar")], IMAGES)),
    ):
        assert peak(many, 3000 if many.lines is None else 20_000) < peak(few, 300) + 200_000


def test_how_many_there_are_is_counted_beside_the_work(tmp_path: Path) -> None:
    for i in range(30):
        (tmp_path / f"{i}.png").touch()
    for shard in range(3):
        with tarfile.open(tmp_path / f"{shard}.tar", "w") as tar:
            for i in range(100):
                member = tarfile.TarInfo(f"{i}.png")
                member.size = 1000
                tar.addfile(member, io.BytesIO(bytes(1000)))
    listing = Listing([str(tmp_path), str(tmp_path / "*.tar")], IMAGES)
    samples = iter(listing)
    assert listing.count() is None
    assert listing.count(60.0) is None  # nobody has looked into a tar file
    for _ in range(30 + 50):
        next(samples)
    assert listing.count() == pytest.approx(330, rel=0.1)
    assert sum(1 for _ in samples) == 250
    assert listing.count() == 330
    assert Listing(["-"], IMAGES, lines=[]).count(1.0) is None
