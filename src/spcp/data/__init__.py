"""Data sets: those of the benchmarks, the user's, and an embedded default of real data.

`load_benchmark` and `make_benchmark` give a `Benchmark`, `read` and `as_set` a data set, `Loader` batches.

Each is imported when it is first used: the test transform of images (`images`) works without torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .arrays import read_arrays as read_arrays
    from .audio import AudioTransform as AudioTransform
    from .audio import log_mel as log_mel
    from .benchmark import Benchmark as Benchmark
    from .benchmarks import load_benchmark as load_benchmark
    from .downloads import SOURCES as SOURCES
    from .downloads import download as download
    from .downloads import verify as verify
    from .errors import DataError as DataError
    from .files import read_cifar as read_cifar
    from .files import read_cifar10c as read_cifar10c
    from .files import read_idx as read_idx
    from .files import read_mnist as read_mnist
    from .files import read_svhn as read_svhn
    from .folders import read_folder as read_folder
    from .folders import read_imglist as read_imglist
    from .folders import read_places365 as read_places365
    from .folders import read_texture as read_texture
    from .folders import read_tin as read_tin
    from .images import ImageTransform as ImageTransform
    from .inputs import Inputs as Inputs
    from .listing import Listing as Listing
    from .listing import Sample as Sample
    from .loader import Loader as Loader
    from .noises import noise as noise
    from .openood import BENCHMARKS as BENCHMARKS
    from .outliers import proxies as proxies
    from .prepared import prepare as prepare
    from .prepared import readable as readable
    from .reading import as_set as as_set
    from .reading import read as read
    from .sets import DataSet as DataSet
    from .sets import FileSet as FileSet
    from .sets import ItemSet as ItemSet
    from .sets import TensorSet as TensorSet
    from .sets import as_ood as as_ood
    from .sets import histogram as histogram
    from .sets import take as take
    from .user_data import make_benchmark as make_benchmark
    from .user_data import read_benchmark as read_benchmark

_NAMES = {
    "arrays": ("read_arrays",),
    "audio": ("AudioTransform", "log_mel"),
    "benchmark": ("Benchmark",),
    "benchmarks": ("load_benchmark",),
    "downloads": ("SOURCES", "download", "verify"),
    "errors": ("DataError",),
    "files": ("read_cifar", "read_cifar10c", "read_idx", "read_mnist", "read_svhn"),
    "folders": ("read_folder", "read_imglist", "read_places365", "read_texture", "read_tin"),
    "images": ("ImageTransform",),
    "inputs": ("Inputs",),
    "listing": ("Listing", "Sample"),
    "loader": ("Loader",),
    "noises": ("noise",),
    "openood": ("BENCHMARKS",),
    "prepared": ("prepare", "readable"),
    "outliers": ("proxies",),
    "reading": ("as_set", "read"),
    "sets": ("DataSet", "FileSet", "ItemSet", "TensorSet", "as_ood", "histogram", "take"),
    "user_data": ("make_benchmark", "read_benchmark"),
}
_HOME = {name: module for module, names in _NAMES.items() for name in names}

__all__ = list(_HOME)


def __getattr__(name: str) -> Any:
    if name in _HOME:
        globals()[name] = getattr(importlib.import_module(f".{_HOME[name]}", __name__), name)  # asked for once
        return globals()[name]
    if name in _NAMES:
        return importlib.import_module(f".{name}", __name__)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
