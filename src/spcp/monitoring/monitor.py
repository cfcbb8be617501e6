"""Watch a detector in use: an alarm that is valid at any time, and the share of flagged inputs with exact intervals.

The alarm comes from bets on the p-values and on the predicted classes, against the hypothesis that the stream looks
like the calibration data; see `betting.py`. Memory does not grow with the stream.
"""

from __future__ import annotations

import dataclasses
import io
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ..errors import InputError, check_numbers
from ..files import written
from ..metrics import Interval, exact_interval
from .betting import BLOCK, CLASS_EDGES, EDGES, Bets, Floats, Ints, State, bin_ranks, gaps_of
from .reference import Reference

WINDOWS = 128  # of a timeline, at most; then they are merged in pairs
TENTHS = 10  # of [0, 1], that a timeline tells p-values apart by
FORMAT = 1

_OVER = math.log(10_000)  # of the statistic at which an alarm ends
_CURE = "start a new state, or name the detector that it is of"


@dataclass(frozen=True)
class Event:
    """An alarm that begins or ends.

    Attributes:
        kind: "alarm" or "end".
        stream: the name of the stream.
        input: after how many inputs.
        since: after how many inputs the change began, by estimate.
        log10_evidence: of the capital of the bets; 2 is 100 times the stake.
        cause: "p-values" or "classes": which of the two has more evidence.
        detail: what is different, in words.
    """

    kind: str
    stream: str
    input: int
    since: int
    log10_evidence: float
    cause: str
    detail: str


@dataclass(frozen=True)
class Window:
    """Some consecutive inputs of a stream: the share that is flagged, with an exact 95 % interval, and the evidence."""

    start: int
    inputs: int
    flagged: int
    share: float
    interval: Interval  # Clopper and Pearson's
    log10_evidence: float  # at its end
    alarm: bool  # at any time in it
    p_values: tuple[int, ...]  # how many lie in each tenth of [0, 1]


@dataclass(frozen=True)
class Status:
    """How a stream stands: see `Event` and `Window` for the fields."""

    stream: str
    inputs: int
    flagged: int
    alarm: bool
    alarms: int  # so far
    since: int | None  # of the alarm
    log10_evidence: float
    window: Window  # the last complete one, else the first


class Monitor:
    """Watch one stream of detections, or thousands.

    While the inputs of a stream are exchangeable with the calibration samples, the probability that it ever raises an
    alarm is at most `alpha`, on average over calibration sets and however often one looks. All of the distribution of
    p-values is tested, and that of predicted classes. An alarm ends when inputs look like the reference again; then the
    test begins anew, without the inputs since the change.

    Args:
        reference: a calibrated detector, or its file, see `Reference.of`; or a number of calibration samples.
        alpha: the largest probability of a false alarm, for each stream.
        window: inputs over which the share of flagged ones is counted, a multiple of 20.
        streams: their names, or how many there are; `update` adds those that it meets.
        seed: of the order of equal scores and equal classes.

    Example:
        >>> rng = np.random.default_rng(0)
        >>> calibration, stream = np.sort(rng.normal(size=500)), rng.normal(size=2000)
        >>> stream[1000:] += 1  # larger scores: fewer inputs are flagged
        >>> p_values = (1 + np.searchsorted(calibration, stream)) / 501
        >>> [event.kind for event in Monitor(500).update(p_values)]
        ['alarm']
    """

    def __init__(
        self,
        reference: Any,
        *,
        alpha: float = 0.01,
        window: int = 1000,
        streams: Sequence[str] | int = ("",),
        seed: int = 0,
    ) -> None:
        check_numbers({"alpha": alpha, "window": window}, {"alpha": (float, 1e-12, 0.5), "window": (int, BLOCK, 10**9)})
        if window % BLOCK:
            raise InputError(f"window = {window} must be a multiple of {BLOCK}")
        if isinstance(reference, int):
            reference = Reference((reference,))
        self.reference = reference if isinstance(reference, Reference) else Reference.of(reference)
        self.alpha, self.window = alpha, window
        self._rng = np.random.default_rng(seed)
        samples = np.array(self.reference.samples)
        self._ranks = bin_ranks(samples, EDGES)  # (G, m - 1): the least rank in each bin but the first
        self._bets = [Bets(gaps_of(self._ranks, samples))]
        # The calibration samples that divide bins, with the chance by which they are in order among equal scores.
        self._score_edges: Floats = np.zeros((2, 0, 0))
        if self.reference.scores:
            chances = [self._rng.random(len(scores)) for scores in self.reference.scores]
            edges = [
                np.array([scores, chance])[:, np.lexsort((chance, scores))[ranks - 1]]
                for scores, chance, ranks in zip(self.reference.scores, chances, self._ranks, strict=True)
            ]
            self._score_edges = np.stack(edges, 1)  # (2, G, m - 1)
        self._class_edges: Floats = np.zeros(0)
        counts = np.array(self.reference.class_counts, dtype=np.int64)
        if counts.sum():  # classes in the order of their numbers, and at random within each
            ranks = bin_ranks(counts.sum(keepdims=True), CLASS_EDGES)
            placed = np.repeat(np.arange(len(counts)), counts) + self._rng.random(counts.sum())
            self._class_edges = np.sort(placed)[ranks[0] - 1]
            self._bets.append(Bets(gaps_of(ranks, counts.sum(keepdims=True))))
        self.streams: list[str] = []
        self._index: dict[str, int] = {}
        self._state = self._new(0)
        self._add([str(i) for i in range(streams)] if isinstance(streams, int) else streams)

    def _new(self, S: int) -> State:
        """Return the state of S streams of which nothing is seen yet; the first axis of all is that of streams."""
        by_class = self.reference.samples if len(self.reference.samples) > 1 else ()
        K = max(map(len, (self.reference.class_counts, self.reference.class_names, by_class)))
        whole = ["seen", "flagged", "alarms", "since", "cause", "width"]
        whole += ["window_index", "window_inputs", "window_flagged", "last_inputs", "last_flagged"]
        state: State = {name: np.zeros(S, np.int64) for name in whole}
        state["width"] += self.window
        state |= {name: np.zeros((S, WINDOWS), np.int32) for name in ("timeline_inputs", "timeline_flagged")}
        state["timeline_p_values"] = np.zeros((S, WINDOWS, TENTHS), np.int32)
        state["timeline_evidence"] = np.zeros((S, WINDOWS), np.float32)
        state["timeline_alarm"] = np.zeros((S, WINDOWS), bool)
        state["evidence"] = np.zeros(S)  # log of the mean of the capitals
        state |= {name: np.zeros(S, bool) for name in ("alarm", "frozen")}
        state |= {name: np.zeros((S, K), np.int64) for name in ("classes", "recent_classes")}
        for i, bets in enumerate(self._bets):
            state |= {f"{i}.{name}": array for name, array in bets.new(S).items()}
        return state

    def _add(self, names: Sequence[str]) -> None:
        """Add streams."""
        new = self._new(len(names))
        self._state = {name: np.concatenate([old, new[name]]) for name, old in self._state.items()}
        self._index |= {name: len(self.streams) + i for i, name in enumerate(names)}
        self.streams += names
        if len(self._index) != len(self.streams):
            raise InputError("two streams have the same name; give each its own")

    def update(
        self,
        p_values: ArrayLike,
        *,
        classes: ArrayLike | None = None,
        is_ood: ArrayLike | None = None,
        scores: ArrayLike | None = None,
        streams: Sequence[str] | Ints | None = None,
    ) -> list[Event]:
        """Take inputs in the order in which they came, and return the alarms that begin or end.

        The result does not depend on how inputs are divided among calls.

        Args:
            p_values: of the detector, (B,).
            classes: the predicted classes, (B,); -1 where there is none. By class, the detector's p-values need them.
            is_ood: whether each is flagged, (B,); by default where the p-value is at most the detector's alpha.
            scores: (B,), for a detector whose calibration scores have ties; others do not need them.
            streams: the stream of each input, by name or by number; by default the first.
        """
        p = _column("p_values", p_values, None, np.float64)
        if not ((p >= 0) & (p <= 1)).all():
            raise InputError(f"{p[~((p >= 0) & (p <= 1))][0]:g} is not a p-value; it must lie between 0 and 1")
        B, K = len(p), self._state["classes"].shape[1]
        flagged = p <= self.reference.alpha if is_ood is None else _column("is_ood", is_ood, B, np.bool_)
        predicted = np.full(B, -1) if classes is None else _column("classes", classes, B, np.int64)
        if K and (predicted >= K).any():
            raise InputError(f"class {predicted.max()} is not among the {K} classes of the detector")
        groups = np.zeros(B, np.int64) if len(self.reference.samples) == 1 else predicted
        if (groups < 0).any():
            raise InputError("the detector's p-values are by class; give the class of each input")
        s = np.full(B, np.nan) if scores is None else _column("scores", scores, B, np.float64)
        at = self._numbers(streams, B)
        chance = self._rng.random((B, 2)).T  # as many for each input, however they are divided among calls
        bins = self._score_bins(p, groups, s, chance[0])
        class_bins = np.where(predicted < 0, -1, np.searchsorted(self._class_edges, predicted + chance[1]))
        tenths = np.minimum((p * TENTHS).astype(np.int64), TENTHS - 1)

        # Blocks of a stream one after another; the same of all streams at once.
        order = np.argsort(at, kind="stable")
        ordered = at[order]
        position = self._state["seen"][ordered] + np.arange(B) - np.searchsorted(ordered, ordered)
        block = position // BLOCK - self._state["seen"][ordered] // BLOCK
        by_block = np.argsort(block, kind="stable")
        ends = np.searchsorted(block[by_block], np.arange(1, block.max(initial=-1) + 2))
        events: list[Event] = []
        for start, end in zip([0, *ends], ends, strict=False):
            chosen = by_block[start:end]
            rows, row = np.unique(ordered[chosen], return_inverse=True)
            cells = row, position[chosen] % BLOCK
            columns = (bins, groups, class_bins, predicted, flagged, tenths)
            events += self._block(rows, *(_cells(column[order[chosen]], cells, len(rows)) for column in columns))
        return sorted(events, key=lambda event: event.input) if len(self.streams) == 1 else events

    def _numbers(self, streams: Sequence[str] | Ints | None, B: int) -> Ints:
        """Return the number of the stream of each input; names that are new become streams."""
        if streams is None:
            return np.zeros(B, np.int64)
        if isinstance(streams, np.ndarray) and streams.dtype.kind == "i":
            at = _column("streams", streams, B, np.int64)
            if B and not 0 <= at.min() <= at.max() < len(self.streams):
                raise InputError(f"stream {at.max()} is not among the {len(self.streams)} streams")
            return at
        if len(streams) != B:
            raise InputError(f"streams has {len(streams)} entries for {B} inputs; give one for each")
        new = [name for name in dict.fromkeys(streams) if name not in self._index]
        if new:
            self._add(new)
        return np.array([self._index[name] for name in streams], dtype=np.int64)

    def _score_bins(self, p: Floats, groups: Ints, scores: Floats, chance: Floats) -> Ints:
        """Return the bin of each input's rank among the calibration scores of its group."""
        n = np.array(self.reference.samples)[groups]
        rank = np.clip(np.rint(p * (n + 1)) - 1, 0, n)  # 0 for p = 0, of a score that is not a number
        bins = (rank[:, None] >= self._ranks[groups]).sum(1)
        tied = np.flatnonzero(np.isin(scores, self._score_edges[0]))  # the others have a bin without chance
        if len(tied):
            edge, order = self._score_edges[:, groups[tied]]
            equal = edge == scores[tied, None]
            bins[tied] = ((edge < scores[tied, None]) | (equal & (order < chance[tied, None]))).sum(1)
        return bins

    def _block(
        self, rows: Ints, bins: Ints, groups: Ints, class_bins: Ints, classes: Ints, flagged: Ints, tenths: Ints
    ) -> list[Event]:
        """Take up to a block of inputs, of one block, of each of some streams: (R, BLOCK), -1 where there is none."""
        state, R = self._state, len(rows)
        valid = bins >= 0
        taken = valid.sum(1)
        start = state["seen"][rows]
        state["seen"][rows] += taken
        state["flagged"][rows] += (flagged == 1).sum(1)
        whole = state["seen"][rows] % BLOCK == 0
        frozen = state["frozen"][rows]
        if state["classes"].shape[1]:
            counted = _tally(classes, state["classes"].shape[1])
            state["classes"][rows] += counted
            state["recent_classes"][rows] += counted

        capital, columns = [], [(bins, groups), (class_bins, np.zeros_like(groups))]
        for i, (bets, (values, group)) in enumerate(zip(self._bets, columns, strict=False)):
            part = {name: state[f"{i}.{name}"][rows] for name in bets.new(0)}
            capital.append(bets.advance(part, values, group, frozen))
            calm = bets.finish(part, whole, frozen, state["seen"][rows])
            for name, array in part.items():
                state[f"{i}.{name}"][rows] = array
        if state["classes"].shape[1]:
            state["recent_classes"][rows[calm]] = 0  # of the last bets: those on classes, if there are any
        evidence = np.logaddexp.reduce(capital) - math.log(len(capital))  # (R, BLOCK)
        state["evidence"][rows] = evidence[:, -1]

        events = []
        crossed = valid & (evidence >= -math.log(self.alpha)) & ~state["alarm"][rows][:, None]
        for row in np.flatnonzero(crossed.any(1)):
            slot = int(crossed[row].argmax())
            at = int(start[row] - start[row] % BLOCK + slot + 1)
            events.append(self._begin(int(rows[row]), at, [float(values[row, slot]) for values in capital]))
        self._record(rows, start, taken, flagged, tenths)
        begun = rows[whole & ~frozen & state["alarm"][rows]]
        state["frozen"][begun] = True
        for i, bets in enumerate(self._bets if len(begun) else ()):
            weights, histograms = state[f"{i}.weights"][begun], state[f"{i}.histograms"][begun]
            state[f"{i}.changed"][begun] = bets.bet_on(weights, histograms)
        back = np.stack([state[f"{i}.return"][rows] for i in range(len(self._bets))])
        over = whole & frozen & (back[state["cause"][rows], np.arange(R)] >= _OVER)
        return events + [self._end(int(stream)) for stream in rows[over]] if R else []

    def _begin(self, stream: int, at: int, capital: Sequence[float]) -> Event:
        state = self._state
        cause = int(np.argmax(capital))
        state["alarm"][stream], state["cause"][stream] = True, cause
        state["alarms"][stream] += 1
        state["since"][stream] = min(int(state[f"{cause}.since"][stream]), at - 1)
        evidence = float(np.logaddexp.reduce(capital)) - math.log(len(capital))
        return self._event("alarm", stream, at, evidence, cause)

    def _end(self, stream: int) -> Event:
        state = self._state
        event = self._event(
            "end", stream, int(state["seen"][stream]), float(state["evidence"][stream]), int(state["cause"][stream])
        )
        state["alarm"][stream] = state["frozen"][stream] = False
        state["evidence"][stream] = 0
        state["recent_classes"][stream] = 0
        for i, bets in enumerate(self._bets):  # what was seen before the change stays in the reference
            for name, array in bets.new(1).items():
                if name != "counts":
                    state[f"{i}.{name}"][stream] = array[0]
            state[f"{i}.since"][stream] = state["seen"][stream]
        return event

    def _at(self, stream: str | None) -> int:
        """Return the number of a stream, by default the first."""
        at = 0 if stream is None else self._index.get(stream, -1)
        if not 0 <= at < len(self.streams):
            raise InputError(f"there is no stream {stream or ''!r}; streams are {', '.join(self.streams[:9])}")
        return at

    def reset(self, stream: str | None = None) -> None:
        """Begin the test of a stream anew, against the calibration set alone: what was wrong is mended."""
        at = self._at(stream)
        self._end(at)
        for i in range(len(self._bets)):
            self._state[f"{i}.counts"][at] = 0

    def _event(self, kind: str, stream: int, at: int, evidence: float, cause: int) -> Event:
        since = int(self._state["since"][stream])
        detail = "inputs look like the reference again"
        if kind == "alarm":
            detail = self._changed_class(stream) if cause else self._changed_p_values(stream)
        name = ("p-values", "classes")[cause]
        return Event(kind, self.streams[stream], at, since, evidence / math.log(10), name, detail)

    def _changed_p_values(self, stream: int) -> str:
        """Say at which p-value the share of inputs up to it has changed most."""
        recent = self._state["0.recent"][stream]  # (G, m)
        total = recent.sum()
        gaps = self._bets[0].gaps
        expected = (recent.sum(1) @ (gaps / gaps.sum(1, keepdims=True))).cumsum()[:-1] / max(total, 1)
        share = recent.sum(0).cumsum()[:-1] / max(total, 1)
        at = int(np.argmax(np.abs(share - expected)))
        shift = "smaller" if share[at] > expected[at] else "larger"
        return (
            f"p-values are {shift}: {100 * share[at]:.1f} % of {total} inputs have one up to {expected[at]:.2g}, and "
            f"{100 * expected[at]:.1f} % are expected"
        )

    def _changed_class(self, stream: int) -> str:
        """Say of which class the share has changed most."""
        recent = self._state["recent_classes"][stream]
        share = recent / max(recent.sum(), 1)
        expected = np.array(self.reference.class_counts) / sum(self.reference.class_counts)
        at = int(np.argmax(np.abs(share - expected)))
        name = self.reference.class_names[at] if self.reference.class_names else str(at)
        return (
            f"predictions changed: {100 * share[at]:.1f} % of {recent.sum()} inputs are taken for {name}, and "
            f"{100 * expected[at]:.1f} % are expected"
        )

    def _record(self, rows: Ints, start: Ints, taken: Ints, flagged: Ints, tenths: Ints) -> None:
        """Add inputs of one block to the windows."""
        state = self._state
        ood = (flagged == 1).sum(1)
        new = rows[start // self.window > state["window_index"][rows]]
        for name in ("inputs", "flagged"):
            state[f"last_{name}"][new] = state[f"window_{name}"][new]
            state[f"window_{name}"][new] = 0
        state["window_index"][rows] = start // self.window
        state["window_inputs"][rows] += taken
        state["window_flagged"][rows] += ood

        full = rows[start // state["width"][rows] >= WINDOWS]
        for name in ("inputs", "flagged", "p_values", "evidence", "alarm"):
            array = state[f"timeline_{name}"]
            first, second = array[full, ::2], array[full, 1::2]
            both = {"evidence": second, "alarm": first | second if name == "alarm" else second}.get(
                name, first + second
            )
            array[full, : WINDOWS // 2], array[full, WINDOWS // 2 :] = both, 0
        state["width"][full] *= 2
        at = rows, start // state["width"][rows]
        state["timeline_inputs"][at] += taken.astype(np.int32)
        state["timeline_flagged"][at] += ood.astype(np.int32)
        state["timeline_p_values"][at] += _tally(tenths, TENTHS).astype(np.int32)
        state["timeline_evidence"][at] = state["evidence"][rows]
        state["timeline_alarm"][at] |= state["alarm"][rows]

    def status(self, stream: str | None = None) -> Status:
        """Return how a stream, by default the first, stands."""
        at = self._at(stream)
        now = {name: array[at].item() for name, array in self._state.items() if array.ndim == 1 and "." not in name}
        current = not now["window_index"] or now["window_inputs"] == self.window
        inputs, flagged = (now[f"{'window' if current else 'last'}_{name}"] for name in ("inputs", "flagged"))
        evidence = now["evidence"] / math.log(10)
        start = (now["window_index"] - (not current)) * self.window
        window = _window(start, inputs, flagged, evidence, now["alarm"])
        since = now["since"] if now["alarm"] else None
        numbers = now["seen"], now["flagged"], now["alarm"], now["alarms"]
        return Status(self.streams[at], *numbers, since, evidence, window)

    def timeline(self, stream: str | None = None) -> list[Window]:
        """Return the windows of a stream, all of the same size but for the last; at most 128 of them."""
        at = self._at(stream)
        names = ("inputs", "flagged", "evidence", "alarm", "p_values")
        inputs, flagged, evidence, alarm, p = (self._state[f"timeline_{name}"][at].tolist() for name in names)
        width = int(self._state["width"][at])
        return [
            _window(i * width, inputs[i], flagged[i], evidence[i] / math.log(10), alarm[i], p[i])
            for i in range(WINDOWS)
            if inputs[i]
        ]

    def class_counts(self, stream: str | None = None) -> list[int]:
        """Return how often each class was predicted."""
        return self._state["classes"][self._at(stream)].tolist()

    def save(self, path: str | Path, notes: Mapping[str, Any] | None = None) -> Path:
        """Save the state of all streams, with notes that JSON can hold, in one npz file."""
        path = Path(path).expanduser()
        reference = {
            f.name: getattr(self.reference, f.name) for f in dataclasses.fields(Reference) if f.name != "scores"
        }
        about = {
            "format": FORMAT,
            "reference": reference,
            "alpha": self.alpha,
            "window": self.window,
            "streams": self.streams,
            "random": self._rng.bit_generator.state,
            "notes": dict(notes or {}),
        }
        arrays: dict[str, Any] = {f"scores.{i}": scores for i, scores in enumerate(self.reference.scores)}
        arrays |= {f"state.{name}": array for name, array in self._state.items()}
        file = io.BytesIO()
        arrays |= {
            "about": np.array(json.dumps(about)),
            "class_edges": self._class_edges,
            "score_edges": self._score_edges,
        }
        np.savez(file, **arrays)
        with written(path) as out:
            out.write(file.getvalue())
        return path

    @classmethod
    def load(cls, path: str | Path, detector: Any = None) -> Self:
        """Load a state that `save` wrote; with a detector (see `Reference.of`), it must be of that one."""
        return cls.load_with_notes(path, detector)[0]

    @classmethod
    def load_with_notes(cls, path: str | Path, detector: Any = None) -> tuple[Self, dict[str, Any]]:
        """Load a state and the notes that it was saved with."""
        path = Path(path).expanduser()
        if not path.is_file():
            raise InputError(f"{path}: {'is not a file' if path.exists() else 'there is no such file'}; {_CURE}")
        try:
            with path.open("rb") as raw, np.load(raw, allow_pickle=False) as file:
                if any(info.file_size > path.stat().st_size for info in file.zip.infolist()):
                    raise ValueError("it is compressed")  # which `save` does not do
                arrays = {name: file[name] for name in file.files}
            about = json.loads(str(arrays["about"]))
            if about["format"] != FORMAT:
                raise InputError(f"{path}: is of format {about['format']}, and this version reads {FORMAT}; {_CURE}")
            fields: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in about["reference"].items()}
            groups = len(fields["samples"]) if "scores.0" in arrays else 0
            reference = Reference(**fields, scores=tuple(arrays[f"scores.{i}"] for i in range(groups)))
            monitor = cls(reference, alpha=about["alpha"], window=about["window"], streams=about["streams"])
            monitor._rng.bit_generator.state = about["random"]
            state = {name: arrays[f"state.{name}"] for name in monitor._state}
            wrong = [k for k, v in monitor._state.items() if (v.shape, v.dtype) != (state[k].shape, state[k].dtype)]
            edges = {name: arrays[name] for name in ("class_edges", "score_edges")}
            wrong += [name for name, array in edges.items() if array.shape != getattr(monitor, f"_{name}").shape]
            if wrong:
                raise ValueError(f"{wrong[0]} does not fit")
            monitor._state = state
            monitor._class_edges, monitor._score_edges = edges.values()
            notes: dict[str, Any] = about["notes"]
        except InputError as error:
            raise InputError(str(error) if str(error).startswith(str(path)) else f"{path}: {error}; {_CURE}") from error
        except Exception as error:  # a damaged file can raise anything
            raise InputError(f"{path}: is not the state of a monitor, or damaged ({error}); {_CURE}") from error
        if detector is not None:
            other = detector if isinstance(detector, Reference) else Reference.of(detector)
            if other.detector != reference.detector:
                raise InputError(
                    f"{path}: is the state of another detector ({reference.detector}, not {other.detector}); {_CURE}"
                )
        return monitor, notes


def _cells(values: Any, cells: tuple[Any, Any], rows: int) -> Ints:
    table = np.full((rows, BLOCK), -1, np.int64)
    table[cells] = values
    return table


def _tally(values: Ints, kinds: int) -> Ints:
    """Count the values of each row, from 0 to kinds - 1, and not -1: (R, kinds)."""
    cell = (np.arange(len(values))[:, None] * kinds + values)[values >= 0]
    return np.bincount(cell, minlength=len(values) * kinds).reshape(-1, kinds)


def _column(name: str, values: ArrayLike, length: int | None, kind: Any) -> NDArray[Any]:
    column = np.asarray(values)
    if column.ndim != 1 or (length is not None and len(column) != length):
        raise InputError(f"{name} has the shape {column.shape}; give one number for each input")
    if column.size and column.dtype.kind not in "biuf":
        raise InputError(f"{name} must be numbers, not {column.dtype}")
    return column.astype(kind)


def _window(
    start: int, inputs: int, flagged: int, evidence: float, alarm: bool, p_values: Sequence[int] = ()
) -> Window:
    share = flagged / inputs if inputs else 0.0
    return Window(start, inputs, flagged, share, exact_interval(flagged, inputs), evidence, alarm, tuple(p_values))
