"""Run an exported detector: onnxruntime and numpy are all it needs.

Nothing in a file is trusted before it is looked at: what `ExportedDetector.open` reads of it is checked here, data that
lies in other files is refused, and nothing is unpickled.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple, Self

import numpy as np

from .errors import InputError, need, reason

FORMAT = 1
METADATA = "spcp"  # the name of the entry among the metadata of a file
INPUT = "input"
OUTPUTS = ("prediction", "logits", "score", "p_value", "is_ood")
PIXELS = "tensor(uint8)"  # the type of an input that is prepared inside

_CURE = "export it again with spcp export"
_NUMBER = int | float
_ABOUT: Mapping[str, Any] = {  # what the metadata hold, and of which type it is
    **dict.fromkeys(("spcp", "torch", "date", "score", "preprocessing"), str),
    **dict.fromkeys(("format", "calibration_samples"), int),
    **dict.fromkeys(("options", "inputs"), dict),
    "alpha": _NUMBER,
    "delta": _NUMBER | None,
    "by_class": bool,
    "threshold": _NUMBER | list,
    "class_names": list | None,
}

# Fields of the messages of ONNX that may hold tensors, by the message that is inside; and those of a tensor that say
# that its data lie in another file.
_INSIDE: Mapping[str, Mapping[int, str]] = {
    "model": {7: "graph", 20: "training", 25: "function"},
    "graph": {1: "node", 5: "tensor", 15: "sparse"},
    "training": {1: "graph", 2: "graph"},
    "function": {7: "node", 11: "attribute"},
    "node": {5: "attribute"},
    "attribute": {5: "tensor", 6: "graph", 10: "tensor", 11: "graph", 22: "sparse", 23: "sparse"},
    "sparse": {1: "tensor", 2: "tensor"},
    "tensor": {},
}
_ELSEWHERE = (13, 14)
_DEEPEST = 64


class ExportedDetection(NamedTuple):
    """What an exported detector decides about a batch.

    Attributes:
        predictions: the predicted class, (B,).
        logits: (B, K).
        scores: larger is more in-distribution, (B,).
        p_values: small for samples unlike the calibration data, (B,).
        is_ood: whether the sample is flagged as out-of-distribution, (B,) bool.
    """

    predictions: np.ndarray
    logits: np.ndarray
    scores: np.ndarray
    p_values: np.ndarray
    is_ood: np.ndarray


class ExportedDetector:
    """A detector in an ONNX file that `Detector.export` or `spcp export` wrote; see `open`.

    Threads may share one.
    """

    def __init__(self, session: Any, metadata: Mapping[str, Any]) -> None:
        self.session, self.metadata = session, metadata
        (entry,) = session.get_inputs()
        self._kind = np.uint8 if entry.type == PIXELS else np.float32
        self._shape = [size if isinstance(size, int) else None for size in entry.shape[1:]]

    @classmethod
    def open(cls, path: str | Path, *, threads: int | None = None, spinning: bool = True) -> Self:
        """Open a file; `threads` is how many onnxruntime may use for one batch, by default all cores.

        Between batches they spin, ready at once but taking their cores; a server needs those for other things.
        """
        path = Path(path).expanduser()
        try:
            data = path.read_bytes()
        except OSError as error:
            what = "there is no such file" if isinstance(error, FileNotFoundError) else error.strerror or str(error)
            raise InputError(f"{path}: {what}; name a file that spcp export wrote") from error
        return cls.read(data, path, threads=threads, spinning=spinning)

    @classmethod
    def read(cls, data: bytes, path: Path, *, threads: int | None = None, spinning: bool = True) -> Self:
        """Read the content of a file, see `open`; errors name the path."""
        runtime = need("onnxruntime", "onnxruntime", "onnx")
        metadata = read_metadata(data, path)
        options = runtime.SessionOptions()
        options.log_severity_level = 4  # errors come as exceptions
        if threads is not None:
            options.intra_op_num_threads = threads
        if not spinning:
            options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        try:
            session = runtime.InferenceSession(data, options, providers=["CPUExecutionProvider"])
        except Exception as error:  # onnxruntime has a dozen kinds
            raise InputError(f"{path}: onnxruntime cannot load it ({reason(error)}); {_CURE}") from error
        names = [entry.name for entry in session.get_inputs()], [entry.name for entry in session.get_outputs()]
        if names != ([INPUT], list(OUTPUTS)):
            raise InputError(f"{path}: its outputs are not those of a detector ({', '.join(names[1])}); {_CURE}")
        if session.get_inputs()[0].type not in (PIXELS, "tensor(float)"):
            raise InputError(f"{path}: its input is of {session.get_inputs()[0].type}; {_CURE}")
        return cls(session, metadata)

    @property
    def alpha(self) -> float:
        """The largest false alarm rate."""
        return float(self.metadata["alpha"])

    @property
    def class_names(self) -> list[str] | None:
        """The names of the classes, where they are known."""
        return self.metadata["class_names"]

    @property
    def inputs(self) -> Mapping[str, Any]:
        """What the network takes, as `Inputs.as_json` describes it: the shape of a sample and its transform."""
        return self.metadata["inputs"]

    @property
    def takes_pixels(self) -> bool:
        """Whether images go in as bytes (B, H, W, C), because the preprocessing is inside; else prepared floats."""
        return self._kind is np.uint8

    @property
    def sample_shape(self) -> tuple[int | None, ...]:
        """The shape of one sample; None where any size will do."""
        return tuple(self._shape)

    def detect(self, samples: np.ndarray) -> ExportedDetection:
        """Decide about a batch: floats as the network takes them, or bytes if `takes_pixels`."""
        samples = np.asarray(samples)
        if self._kind is np.float32 and samples.dtype.kind == "f":
            samples = samples.astype(np.float32, copy=False)
        right = samples.ndim == 1 + len(self._shape) and samples.dtype == self._kind
        if not right or any(s not in (None, size) for s, size in zip(self._shape, samples.shape[1:], strict=True)):
            shape = ", ".join("any" if size is None else str(size) for size in self._shape)
            raise InputError(
                f"the samples are {samples.dtype} {samples.shape}, but the detector takes "
                f"{np.dtype(self._kind)} (batch, {shape}); prepare them so"
            )
        if not len(samples):  # which onnxruntime cannot loop over
            one = np.zeros((1, *(size or 1 for size in self._shape)), self._kind)
            return ExportedDetection(*(output[:0] for output in self.session.run(OUTPUTS, {INPUT: one})))
        return ExportedDetection(*self.session.run(OUTPUTS, {INPUT: np.ascontiguousarray(samples)}))


def read_metadata(data: bytes, path: Path) -> dict[str, Any]:
    """Return what a file says about its detector; an error where it is none, or where its data lie in other files."""
    try:
        _check_whole(memoryview(data), "model", 0)
        text = _metadata(memoryview(data))
    except (IndexError, ValueError) as error:
        if isinstance(error, InputError):
            raise InputError(f"{path}: {error}") from error
        raise InputError(f"{path}: is not an ONNX file, or is damaged; {_CURE}") from error
    if text is None:
        raise InputError(f"{path}: is an ONNX file without a detector; name a file that spcp export wrote")
    try:
        about = json.loads(text)
        wrong = [key for key, kind in _ABOUT.items() if not _is(about.get(key), kind)]
    except (ValueError, AttributeError, RecursionError) as error:
        raise InputError(f"{path}: its metadata cannot be read ({reason(error)}); {_CURE}") from error
    if not wrong and about["format"] != FORMAT:
        raise InputError(f"{path}: is of format {about['format']}, and this version reads {FORMAT}; update spcp")
    names = about.get("class_names")
    if names is not None and not all(isinstance(name, str) for name in names):
        wrong = wrong or ["class_names"]
    if not wrong and not 0 < about["alpha"] < 1:
        wrong = ["alpha"]
    if wrong:
        raise InputError(f"{path}: {wrong[0]} = {about.get(wrong[0])!r:.60} in its metadata is not valid; {_CURE}")
    return about


def _is(value: Any, kind: Any) -> bool:
    return isinstance(value, kind) and (kind is bool or not isinstance(value, bool))


def _metadata(model: memoryview) -> str | None:
    """Return the entry of the metadata that is ours."""
    for number, entry in _fields(model):
        if number == 14 and not isinstance(entry, int):  # StringStringEntryProto: key 1, value 2
            pair = {field: bytes(value).decode() for field, value in _fields(entry) if not isinstance(value, int)}
            if pair.get(1) == METADATA:
                return pair.get(2, "")
    return None


def _check_whole(message: memoryview, kind: str, depth: int) -> None:
    """Raise an error where the data of a tensor lie in another file; that could be any file of this machine."""
    if depth > _DEEPEST:
        raise ValueError("nested too deep")
    for number, value in _fields(message):
        if kind == "tensor" and number in _ELSEWHERE and value != 0:
            raise InputError(f"its data lie in other files, which are not read; {_CURE}")
        inside = _INSIDE[kind].get(number)
        if inside:
            if isinstance(value, int):
                raise ValueError("not a message")
            _check_whole(value, inside, depth + 1)


def _fields(message: memoryview) -> Iterator[tuple[int, int | memoryview]]:
    """Yield the number and value of each field of a protobuf message: an integer, or the bytes of anything else."""
    place = 0
    while place < len(message):
        key, place = _varint(message, place)
        if not key >> 3:
            raise ValueError("not a protobuf message")
        if key & 7 == 0:
            value, place = _varint(message, place)
            yield key >> 3, value
            continue
        if key & 7 == 2:
            size, place = _varint(message, place)
        else:
            size = {1: 8, 5: 4}.get(key & 7, -1)
        if size < 0 or place + size > len(message):
            raise ValueError("not a protobuf message")
        yield key >> 3, message[place : place + size]
        place += size


def _varint(message: memoryview, place: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = message[place]
        value, shift, place = value | (byte & 127) << shift, shift + 7, place + 1
        if byte < 128:
            return value, place
        if shift > 63:
            raise ValueError("not a protobuf message")
