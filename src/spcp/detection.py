"""Detect OOD samples among files: images or sounds, folders, patterns and archives of them, and arrays."""

from __future__ import annotations

import itertools
import math
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from .data import AudioTransform, Inputs
from .data.decoding import Batch, Decoder, Key, default_workers, stream
from .data.listing import Listing, Sample, Samples
from .data.memory import finish
from .detector import Detection, Detector, Reasons
from .errors import InputError
from .exported import ExportedDetector
from .journal import OR_ANEW, Journal

Decided = Detection | list[Reasons]
Decide = Callable[[Any], Decided]  # about a batch

BATCH = 64
EXPLAINED = {"members": dict, "raised_by": str, "features": dict, "truncated": str}  # fields of `explain` alone
FIELDS = {"file": str, "is_ood": bool, "p_value": float, "class": str, "score": float, **EXPLAINED, "problem": str}
_FEATURES = 5  # that are listed, those with the largest contributions
_IN_VAIN = 1000  # inputs that are not there, after which the rest is not looked for before the first result


@dataclass(frozen=True)
class FileDetection:
    """What a detector decides about one sample; a sample that cannot be read has a problem and nothing else."""

    file: str  # with [i] for row i of an array or a parquet file, and /name for a file in a tar file
    is_ood: bool | None = None
    p_value: float | None = None
    score: float | None = None
    class_name: str | None = None
    problem: str = ""
    explained: Mapping[str, Any] | None = None  # `EXPLAINED`, if asked for

    def as_record(self) -> dict[str, Any]:
        """Return the fields by name, for tables and JSON; the problem only where there is one."""
        record: dict[str, Any] = {
            "file": self.file,
            "is_ood": self.is_ood,
            "p_value": self.p_value,
            "class": self.class_name,
            "score": self.score,
        }
        return record | dict(self.explained or {}) | ({"problem": self.problem} if self.problem else {})


@dataclass
class Counts:
    """How many inputs there were, how many of them were flagged as OOD, and how many could not be read."""

    inputs: int = 0
    flagged: int = 0
    unreadable: int = 0

    def add(self, records: Iterable[Mapping[str, Any]]) -> None:
        """Count records, as they are or read from a CSV file."""
        for record in records:
            self.inputs += 1
            self.flagged += record["is_ood"] in (True, "true")
            self.unreadable += bool(record.get("problem"))


def find_files(arguments: Sequence[str], inputs: Inputs, *, column: str | None = None) -> Iterator[Sample]:
    """Yield the samples that files, folders, patterns and "-" name, see `spcp.data.Listing`, as they are found.

    What is not there is a sample with a problem; if nothing is there, that is an error.
    """
    return check_some(Listing(arguments, inputs, column=column))


def check_some(samples: Iterable[Sample]) -> Iterator[Sample]:
    """Return the samples; an error if all of them (a thousand, if there are more) were looked for in vain."""
    following, lost = iter(samples), []
    for sample in following:
        lost.append(sample)
        if not sample.problem or len(lost) > _IN_VAIN:
            return itertools.chain(lost, following)
    raise InputError(lost[0].problem if lost else "there are no files to classify; name some")


def windows(samples: Iterable[Sample], size: int = BATCH) -> Iterator[list[Sample]]:
    """Yield samples that are decided about together: up to so many, either floats or not, and each name once."""
    window: list[Sample] = []
    names: set[str] = set()
    is_float = None  # whether the window holds floats, as far as it is known
    for sample in samples:
        floats = None if sample.problem else sample.is_float
        if len(window) == size or sample.name in names or (floats is not None and is_float not in (floats, None)):
            yield window
            window, names, is_float = [], set(), None
        window.append(sample)
        names.add(sample.name)
        is_float = is_float if floats is None else floats
    if window:
        yield window


def detect_files(
    detector: Detector | ExportedDetector,
    inputs: Inputs,
    samples: Iterable[Sample],
    *,
    explain: bool = False,
    batch_size: int = BATCH,
    workers: int | None = None,
) -> Iterator[FileDetection]:
    """Yield a result for each sample, in order, as they are made: memory does not depend on how many there are.

    Args:
        detector: a calibrated detector, or an exported one.
        inputs: what its network takes.
        samples: those of `find_files`.
        explain: add the p-values of the members of a consensus, and the features that carried the prediction.
        batch_size: how many samples are decoded, and decided about, together.
        workers: processes that decode; by default one for each core, at most 8, and none for a single batch.
    """
    results = detect_windows(detector, inputs, windows(samples, batch_size), explain=explain, workers=workers)
    return itertools.chain.from_iterable(results)


def detect_windows(
    detector: Detector | ExportedDetector,
    inputs: Inputs,
    listed: Iterable[list[Sample]],
    *,
    explain: bool = False,
    workers: int | None = None,
) -> Iterator[list[FileDetection]]:
    """Yield the results of each window, see `windows` and `detect_files`."""
    listed = iter(listed)
    if workers is None:
        first = list(itertools.islice(listed, default_workers()))
        workers = len(first) if len(first) > 1 else 0  # for one batch they are not worth their start
        listed = itertools.chain(first, listed)
    decide, device = _decider(detector, explain)
    waiting: deque[list[Sample]] = deque()  # windows that are being decoded, without what is in them

    def keys() -> Iterator[list[Key]]:
        for window in listed:
            loaded = [sample.loaded() for sample in window]
            waiting.append([Sample(sample.name, problem=sample.problem) for sample in loaded])
            yield [(sample,) for sample in loaded if not sample.problem]

    whole = isinstance(detector, ExportedDetector) and detector.takes_pixels
    kind: Any = "audio" if isinstance(inputs.transform, AudioTransform) else "image"
    decoder = Decoder(Samples(kind), inputs.transform, whole=whole)

    def detect(window: list[Sample], batch: Batch) -> list[FileDetection]:
        x, _, unreadable = batch
        problems = {sample.name: sample.problem for sample in window if sample.problem} | dict(unreadable)
        names = [sample.name for sample in window if sample.name not in problems]
        x = x if whole else finish(x.to(device, non_blocking=True), inputs.transform)
        results = _results(decide(x), names, inputs) if names else iter(())
        return [
            FileDetection(sample.name, problem=problems[sample.name]) if sample.name in problems else next(results)
            for sample in window
        ]

    decoded = ((waiting.popleft(), batch) for batch in _alive(stream(decoder, keys(), workers, device)))
    shared = workers > 0 and device.type == "cpu" and isinstance(detector, Detector)
    yield from _in_order(detect, decoded, torch.get_num_threads() if shared else 1)


def _in_order(
    detect: Callable[[list[Sample], Batch], list[FileDetection]],
    decoded: Iterable[tuple[list[Sample], Batch]],
    threads: int,
) -> Iterator[list[FileDetection]]:
    """Yield the results of windows in order, which so many threads work on, a window each.

    Threads of torch that share a window would wait for each other, and take the cores from the processes that decode.
    """
    if threads == 1:
        yield from itertools.starmap(detect, decoded)
        return
    results: deque[Future[list[FileDetection]]] = deque()
    pool = ThreadPoolExecutor(threads, "spcp-detect", torch.set_num_threads, (1,))
    try:
        for window, batch in decoded:
            results.append(pool.submit(detect, window, batch))
            if len(results) > threads or results[0].done():
                yield results.popleft().result()
        for result in results:
            yield result.result()
    finally:
        pool.shutdown(cancel_futures=True)
        torch.set_num_threads(threads)  # what threads that are started from now on have


def _decider(detector: Detector | ExportedDetector, explain: bool) -> tuple[Decide, torch.device]:
    """Return what decides about a batch, and where the batch has to be."""
    if isinstance(detector, Detector):
        return detector.explain if explain else detector.detect, detector.model.device
    if explain:
        raise InputError("an exported detector cannot say why (--explain); use the run itself")

    def decide(x: torch.Tensor | list[torch.Tensor]) -> Detection:
        batches = [x.numpy()] if isinstance(x, torch.Tensor) else [image[None].numpy() for image in x]
        columns = zip(*map(detector.detect, batches), strict=True)
        predictions, _, scores, p, is_ood = (torch.from_numpy(np.concatenate(column)) for column in columns)
        return Detection(predictions, scores, p, is_ood)

    return decide, torch.device("cpu")


def _alive(batches: Iterator[Batch]) -> Iterator[Batch]:
    """Pass batches on; that a worker was killed is one sentence."""
    try:
        yield from batches
    except RuntimeError as error:
        if "DataLoader worker" not in str(error):
            raise
        raise InputError(
            f"a process that decodes was ended from outside, maybe for want of memory ({str(error).splitlines()[0]}); "
            "take fewer workers or smaller batches (--workers, --batch-size)"
        ) from error


def resumed(journal: Journal, listed: Iterable[list[Sample]]) -> tuple[Counts, Iterator[list[Sample]]]:
    """Return the counts of the whole windows that a journal holds, and the windows that are left.

    Its last window, if it is not whole, is cut off, so that what follows is as if there had been no break. Rows that
    are not those of the samples, in order, are an error.
    """
    counts, records, listed = Counts(), journal.records(), iter(listed)
    for window in listed:
        place = journal.place
        rows = list(itertools.islice(records, len(window)))
        for row, sample in zip(rows, window, strict=False):
            if _utf8(row["file"]) != _utf8(sample.name):
                changed = f"has a row of {row['file']} where the inputs have {sample.name}"
                raise InputError(f"{journal.path}: {changed}; {OR_ANEW}")
        if len(rows) < len(window):
            journal.cut(place)
            return counts, itertools.chain([window], listed)
        counts.add(rows)
    place = journal.place
    if next(records, None) is not None:
        raise InputError(f"{journal.path}: has more rows than there are inputs, {counts.inputs}; {OR_ANEW}")
    journal.cut(place)
    return counts, iter(())


def _utf8(name: str) -> str:
    return name.encode(errors="backslashreplace").decode()


def _results(decided: Decided, names: Iterable[str], inputs: Inputs) -> Iterator[FileDetection]:
    if isinstance(decided, Detection):
        columns = zip(*(column.tolist() for column in decided), itertools.repeat(None))
    else:
        columns = ((r.prediction, r.score, r.p_value, r.is_ood, _explained(r)) for r in decided)  # type: ignore[assignment]
    for (prediction, score, p_value, is_ood, explained), name in zip(columns, names, strict=False):  # no name too many
        yield FileDetection(name, is_ood, p_value, score, inputs.class_names[prediction], explained=explained)


def _explained(reasons: Reasons) -> dict[str, Any]:
    """Return the reasons in short: p-values by member, and the largest contributions by the number of the feature."""
    made_of = reasons.contributions
    top = [] if made_of is None else made_of.features[:_FEATURES].tolist()
    largest = {} if made_of is None else {str(d): made_of.contributions[d].item() for d in top}
    return {
        "members": dict(reasons.members),
        "raised_by": ", ".join(reasons.raised_by()),
        "features": {d: c for d, c in largest.items() if math.isfinite(c)},
        "truncated": ", ".join(str(d) for d in top if made_of is not None and made_of.is_truncated[d]),
    }
