"""Benchmarks by name: OpenOOD v1.5's four, the embedded "digits", and those described in a TOML file."""

from __future__ import annotations

import dataclasses
import difflib
import functools
import logging
from pathlib import Path

from . import embedded
from .benchmark import Benchmark
from .downloads import data_root
from .errors import DataError
from .folders import Bad
from .images import ImageTransform
from .noises import noise
from .openood import BENCHMARKS
from .openood_files import Finder
from .sets import on_cpu
from .user_data import read_benchmark

_log = logging.getLogger("spcp")


@on_cpu
def load_benchmark(
    name: str | Path, root: str | Path | None = None, *, strict: bool = False, bad: Bad | None = None
) -> Benchmark:
    """Load a benchmark: cifar10, cifar100, imagenet200 or imagenet; "digits", which is embedded; or a TOML file.

    `root` (default: `$SPCP_DATA`, else `./data`) holds official files as they unpack (`cifar-10-batches-bin`, ...), or
    OpenOOD's folders (`images_classic`, `images_largescale`), and OpenOOD's `benchmark_imglist`, where you have it.
    Nothing is decoded yet. A set that is missing is skipped, and the log and `notes` tell how to get it; with `strict`
    it is an error, as is anything else that is not exactly OpenOOD's. `bad` is for TOML files, see `read_benchmark`.
    """
    name = str(name) if str(name).endswith(".toml") else str(name).lower()
    if name == "digits":
        return _digits()
    if name.endswith(".toml"):
        return read_benchmark(name, bad=bad)
    if name not in BENCHMARKS:
        names = ["digits", *BENCHMARKS]
        close = difflib.get_close_matches(name, names, 1)
        hint = f"did you mean {close[0]}?" if close else f"there are {', '.join(names)}, or name a .toml file"
        raise DataError(f"no benchmark {name!r}; {hint}")
    benchmark = Finder(name, data_root(root)).load()
    for note in benchmark.notes:
        if strict:
            raise DataError(f"{name} is not complete: {note}")
        _log.warning("%s: %s", name, note)
    return benchmark


@functools.cache  # a second or two, and it is never changed
def _digits() -> Benchmark:
    train, val, test = embedded.mnist5k()
    uniform = dataclasses.replace(noise("uniform", train, 1000), name="noise")
    return Benchmark(
        "digits",
        ImageTransform(28, 28, (0.1307,), (0.3081,), augment="none", flip=False),
        embedded.DIGITS,
        train,
        val,
        test,
        ood_val={"cyrillic": embedded.glyphs("cyrillic", embedded.CYRILLIC, 1000, seed=10)},
        near={
            "latin": embedded.glyphs("latin", embedded.LATIN, 1000, seed=11),
            "greek": embedded.glyphs("greek", embedded.GREEK, 1000, seed=12),
            "symbols": embedded.glyphs("symbols", embedded.SYMBOLS, 1000, seed=13),
        },
        far={
            "textures": embedded.textures(),
            "photographs": embedded.photographs(),
            "faces": embedded.faces(),
            "noise": uniform,
        },
        shifted={"uci": embedded.uci_digits()},
    )
