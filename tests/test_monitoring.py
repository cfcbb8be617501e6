from __future__ import annotations

import itertools
import math
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from spcp import Detector, Monitor
from spcp.errors import InputError
from spcp.monitoring import Reference
from spcp.monitoring.betting import Bets
from spcp.monitoring.monitor import WINDOWS


def p_values(scores: np.ndarray, calibration: np.ndarray) -> np.ndarray:
    """The p-values of (S, T) scores among the (S, n) calibration scores of their own streams."""
    ranks = [np.searchsorted(np.sort(own), row, "right") for own, row in zip(calibration, scores, strict=True)]
    return (1 + np.array(ranks)) / (1 + calibration.shape[1])


def watch(monitor: Monitor, p: np.ndarray, **columns: np.ndarray) -> np.ndarray:
    """Feed (S, T) p-values, and return after how many inputs each stream raised its first alarm; inf: never."""
    S, T = p.shape
    more = {name: column.T.ravel() for name, column in columns.items()}
    events = monitor.update(p.T.ravel(), streams=np.tile(np.arange(S), T), **more)
    first = np.full(S, np.inf)
    for event in reversed(events):
        if event.kind == "alarm":
            first[int(event.stream)] = event.input
    return first


def assert_at_most(alarmed: np.ndarray, alpha: float) -> None:
    """The share is at most alpha, but for three standard errors."""
    assert alarmed.mean() <= alpha + 3 * math.sqrt(alpha * (1 - alpha) / len(alarmed))


def test_the_mean_capital_is_one_over_all_orders() -> None:
    # Calibration samples and inputs in every order, as exchangeable ones come: no formula is taken for granted.
    n, T = 3, 4
    orders = np.array(list(itertools.permutations(range(n + T))), dtype=float)
    monitor = Monitor(n, streams=len(orders))
    watch(monitor, p_values(orders[:, n:], orders[:, :n]))
    capital = 10 ** np.array([monitor.status(name).log10_evidence for name in monitor.streams])
    assert len(np.unique(capital.round(6))) > 10
    assert capital.mean() == pytest.approx(1, abs=1e-12)


@pytest.mark.parametrize("groups", [1, 2])
def test_the_mean_capital_is_one_when_weight_moves(groups: int) -> None:
    # Every sequence of bins, with its probability in Polya's urn; weight moves after every second input.
    gaps = np.array([[1.0, 2.0, 4.0], [3.0, 1.0, 1.0]])[:groups]
    group = np.array([0, 1, 1, 0, 1, 0]) % groups
    bins = np.array(list(itertools.product(range(3), repeat=6)))
    chance = np.ones(len(bins))
    for i, sequence in enumerate(bins):
        urns = gaps.copy()
        for g, b in zip(group, sequence, strict=True):
            chance[i] *= urns[g, b] / urns[g].sum()
            urns[g, b] += 1
    assert chance.sum() == pytest.approx(1)
    bets, never, always = Bets(gaps), np.zeros(len(bins), bool), np.ones(len(bins), bool)
    state = bets.new(len(bins))
    for start in (0, 2, 4):
        own = bins[:, start : start + 2]
        capital = bets.advance(state, own, np.tile(group[start : start + 2], (len(bins), 1)), never)
        bets.finish(state, always, never, np.full(len(bins), start + 2))
        assert (chance * np.exp(capital[:, -1])).sum() == pytest.approx(1, abs=1e-12)
        assert np.exp(capital).std() > 0.001
    assert (chance * np.exp(state["capital"])).sum() == pytest.approx(1, abs=1e-12)


@pytest.mark.parametrize(("n", "streams", "inputs"), [(19, 4000, 500), (100, 3500, 500), (1000, 2500, 300)])
def test_false_alarms_over_clean_streams(n: int, streams: int, inputs: int) -> None:
    rng = np.random.default_rng(n)
    p = p_values(rng.random((streams, inputs)), rng.random((streams, n)))
    alpha = 0.1
    assert_at_most(np.isfinite(watch(Monitor(n, alpha=alpha, streams=streams), p)), alpha)


def test_p_values_are_not_uniform_given_the_calibration_set() -> None:
    # What is guarded against: with 100 calibration samples, a test that takes p-values for uniform fails.
    rng = np.random.default_rng(0)
    p = p_values(rng.random((200, 1000)), rng.random((200, 100)))
    assert np.isfinite(watch(Monitor(10**6, alpha=0.1, streams=200), p)).mean() > 0.5


def test_false_alarms_with_ties_and_classes() -> None:
    # Scores of five values, of which one is half of all; a finite calibration set for classes, too.
    rng = np.random.default_rng(0)
    S, T, n, alpha = 200, 200, 30, 0.2
    alarmed = []
    for _ in range(S):
        values = rng.choice(5, size=n + T, p=[0.1, 0.1, 0.2, 0.1, 0.5]).astype(float)
        classes = rng.choice(4, size=n + T, p=[0.5, 0.3, 0.1, 0.1])
        calibration = np.sort(values[:n])
        counts = tuple(np.bincount(classes[:n], minlength=4).tolist())
        monitor = Monitor(Reference((n,), class_counts=counts, scores=(calibration,)), alpha=alpha)
        p = p_values(values[None, n:], calibration[None])[0]
        alarmed.append(bool(monitor.update(p, classes=classes[n:], scores=values[n:])))
    assert_at_most(np.array(alarmed), alpha)


def test_false_alarms_by_class() -> None:
    rng = np.random.default_rng(1)
    S, T, sizes, alpha = 1500, 300, (19, 40), 0.1
    classes = rng.integers(0, 2, (S, T))
    own = [p_values(rng.random((S, T)), rng.random((S, n))) for n in sizes]
    first = watch(Monitor(Reference(sizes), alpha=alpha, streams=S), np.where(classes, own[1], own[0]), classes=classes)
    assert_at_most(np.isfinite(first), alpha)


SHIFTS = {
    "30 % contamination": lambda scores, rng: scores - 1.8 * (rng.random(scores.shape) < 0.3),
    "10 % contamination": lambda scores, rng: scores - 1.8 * (rng.random(scores.shape) < 0.1),
    "darkening": lambda scores, rng: scores + 1.2,  # the flagged share falls from 5 to 0.2 %
    "narrowing": lambda scores, rng: 0.6 * scores,
    "widening": lambda scores, rng: 1.6 * scores,
}


@pytest.mark.parametrize(("shift", "within"), list(zip(SHIFTS, (200, 1000, 100, 500, 500), strict=True)))
def test_changes_are_found(shift: str, within: int) -> None:
    rng = np.random.default_rng(0)
    S, n, clean = 40, 3000, 500
    scores = rng.normal(size=(S, clean + within))
    scores[:, clean:] = SHIFTS[shift](scores[:, clean:], rng)
    monitor = Monitor(n, streams=S)
    first = watch(monitor, p_values(scores, rng.normal(size=(S, n))))
    assert ((first > clean) & (first <= clean + within)).mean() >= 0.9
    status = [monitor.status(name) for name in monitor.streams]
    assert np.mean([now.alarm for now in status]) >= 0.9  # and stay
    assert abs(np.median([now.since for now in status if now.since is not None]) - clean) <= 150


def test_a_change_of_classes_is_found() -> None:
    rng = np.random.default_rng(0)
    reference = Reference((500,), class_names=("cat", "dog", "bird"), class_counts=(250, 200, 50))
    classes = [*rng.choice(3, size=1000, p=[0.5, 0.4, 0.1]), *rng.choice(3, size=300, p=[0.2, 0.4, 0.4])]
    (event,) = Monitor(reference).update(rng.random(1300), classes=classes)
    assert event.cause == "classes"
    assert "bird" in event.detail
    assert 1000 < event.input <= 1150
    assert 900 <= event.since < event.input


def test_an_alarm_ends_and_another_begins() -> None:
    rng = np.random.default_rng(0)
    scores = rng.normal(size=(1, 6000))
    scores[0, 1000:2000] += 1
    scores[0, 5000:] -= 1
    p = p_values(scores, rng.normal(size=(1, 500)))[0]
    monitor = Monitor(500)
    first, end, second = monitor.update(p)
    assert (first.kind, end.kind, second.kind) == ("alarm", "end", "alarm")
    assert 1000 < first.input <= 1100
    assert "larger" in first.detail
    assert 2000 < end.input <= 2200
    assert 5000 < second.input <= 5100
    assert "smaller" in second.detail
    status = monitor.status()
    assert (status.alarm, status.alarms, status.inputs) == (True, 2, 6000)
    monitor.reset()
    assert not monitor.status().alarm
    assert monitor.status().log10_evidence == 0


def test_a_lasting_change_stays_an_alarm() -> None:
    # The reference must not learn from what raised the alarm, else a lasting change would look usual after a while.
    rng = np.random.default_rng(0)
    p = p_values(rng.normal(size=(1, 30_000)) + 0.7, rng.normal(size=(1, 200)))[0]
    monitor = Monitor(200)
    assert [event.kind for event in monitor.update(p)] == ["alarm"]
    assert monitor.status().alarm


def state_of(monitor: Monitor, path: Path) -> dict[str, np.ndarray]:
    with np.load(monitor.save(path)) as file:
        return {name: file[name] for name in file.files}


@settings(max_examples=20, deadline=None)
@given(st.lists(st.integers(0, 400), max_size=6), st.integers(0, 2**31))
def test_how_inputs_are_divided_does_not_matter(
    tmp_path_factory: pytest.TempPathFactory, at: list[int], seed: int
) -> None:
    rng = np.random.default_rng(seed)
    calibration = np.sort(rng.integers(0, 30, 50)).astype(float)  # with ties
    reference = Reference((50,), class_counts=(30, 20), scores=(calibration,))
    scores = rng.integers(0, 40, 400).astype(float)
    p, classes = p_values(scores[None], calibration[None])[0], rng.integers(-1, 2, 400)
    names = rng.choice(["a", "b", "c"], 400)
    together, apart = (Monitor(reference, streams=["a"], window=40) for _ in range(2))
    events = together.update(p, classes=classes, scores=scores, streams=names.tolist())
    path, found = tmp_path_factory.mktemp("state") / "state.npz", []
    for part in np.split(np.arange(400), sorted(at)):
        found += apart.update(p[part], classes=classes[part], scores=scores[part], streams=names[part].tolist())
        apart = Monitor.load(apart.save(path))  # a state continues as if nothing had happened
    assert sorted((e.stream, e.input, e.kind, e.since) for e in events) == sorted(
        (e.stream, e.input, e.kind, e.since) for e in found
    )
    assert sorted(together.streams) == sorted(apart.streams)
    for name in together.streams:
        one, other = together.status(name), apart.status(name)
        assert one.log10_evidence == pytest.approx(other.log10_evidence, abs=1e-9)
        assert (one.inputs, one.flagged, one.alarm, one.window.share) == (
            *(other.inputs, other.flagged, other.alarm, other.window.share),
        )
        assert [w.p_values for w in together.timeline(name)] == [w.p_values for w in apart.timeline(name)]


def test_streams_do_not_see_each_other() -> None:
    rng = np.random.default_rng(0)
    p, names = rng.random(3000) ** 1.3, rng.choice(["a", "b", "c"], 3000)
    monitor = Monitor(100, streams=[])
    monitor.update(p, streams=names.tolist())
    for name in "abc":
        alone = Monitor(100)
        alone.update(p[names == name])
        assert monitor.status(name).log10_evidence == pytest.approx(alone.status().log10_evidence)


def test_windows_and_the_timeline() -> None:
    rng = np.random.default_rng(0)
    monitor = Monitor(100, window=20)
    p = (1 + rng.integers(0, 101, 20 * WINDOWS * 2 + 30)) / 101
    monitor.update(p)
    windows = monitor.timeline()
    assert len(windows) == WINDOWS // 2 + 1  # of 80 inputs: merged twice
    assert {window.inputs for window in windows[:-1]} == {80}
    assert [window.start for window in windows] == list(range(0, len(p), 80))
    for window in windows:
        own = p[window.start : window.start + 80]
        assert (window.inputs, window.flagged) == (len(own), (own <= 0.05).sum())
        assert sum(window.p_values) == len(own)
        assert window.interval[0] <= window.share <= window.interval[1]
    last = monitor.status().window
    assert (last.start, last.inputs) == (len(p) // 20 * 20 - 20, 20)
    assert last.flagged == (p[last.start : last.start + 20] <= 0.05).sum()
    monitor.update(p[:10])  # now a window is whole
    assert monitor.status().window.start == last.start + 20
    assert Monitor(100).status().window.interval == (0.0, 1.0)


@pytest.fixture(scope="module")
def detector() -> Detector:
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 3))
    return Detector(network).calibrate(torch.randn(300, 4), alpha=0.1)


def test_a_detector_and_its_file_have_the_same_reference(detector: Detector, tmp_path: Path) -> None:
    reference = Reference.of(detector)
    assert reference.samples == (len(detector.calibration_scores),)
    assert reference.alpha == 0.1
    assert sum(reference.class_counts) == sum(reference.samples)
    path = detector.save(tmp_path / "detector.safetensors", {"inputs": {"class_names": ["a", "b", "c"]}})
    for named in (path, tmp_path):  # the file, and the folder of a run
        of_file = Reference.of(named)
        assert (of_file.detector, of_file.class_counts) == (reference.detector, reference.class_counts)
        assert of_file.class_names == ("a", "b", "c")
    network = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 3))
    assert Reference.of(Detector.load(path, network)).class_counts == reference.class_counts
    torch.manual_seed(1)
    x = torch.randn(400, 4)
    detection = detector.detect(x)
    monitor = Monitor(reference)
    columns = {"classes": detection.predictions, "is_ood": detection.is_ood, "scores": detection.scores}
    assert monitor.update(detection.p_values, **columns) == []
    assert monitor.status().flagged == int(detection.is_ood.sum())
    assert monitor.class_counts() == torch.bincount(detection.predictions, minlength=3).tolist()
    (event,) = monitor.update(detector.detect(0.3 * x).p_values)
    assert event.kind == "alarm"


def test_by_class_the_groups_are_the_classes(detector: Detector) -> None:
    by_class = Detector(detector.model).calibrate(torch.randn(500, 4), alpha=0.2, by_class=True)
    reference = Reference.of(by_class)
    assert reference.samples == reference.class_counts
    detection = by_class.detect(torch.randn(300, 4))
    Monitor(reference).update(detection.p_values, classes=detection.predictions)
    with pytest.raises(InputError, match="by class; give the class of each input"):
        Monitor(reference).update(detection.p_values)


def test_a_state_of_another_detector_is_refused(detector: Detector, tmp_path: Path) -> None:
    path = Monitor(Reference.of(detector)).save(tmp_path / "state.npz")
    assert Monitor.load(path, detector).reference.detector == Reference.of(detector).detector
    other = Detector(detector.model).calibrate(torch.randn(200, 4))
    with pytest.raises(InputError, match=r"state.npz: is the state of another detector .*; start a new state, or"):
        Monitor.load(path, other)


def test_damaged_states_are_refused(tmp_path: Path) -> None:
    monitor = Monitor(50)
    monitor.update(np.full(30, 0.5))
    path = monitor.save(tmp_path / "state.npz")
    whole = path.read_bytes()
    middle = len(whole) // 2
    changed = whole[:middle] + bytes([whole[middle] ^ 1]) + whole[middle + 1 :]
    for damaged in (b"", b"no state", whole[:1000], whole[:-100], changed):
        path.write_bytes(damaged)
        with pytest.raises(InputError, match=r"state.npz: .*; start a new state"):
            Monitor.load(path)
    np.savez(path, about=np.array([object()], dtype=object))  # nothing is unpickled
    with pytest.raises(InputError, match="is not the state of a monitor"):
        Monitor.load(path)
    with pytest.raises(InputError, match="there is no such file"):
        Monitor.load(tmp_path / "other.npz")


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: Monitor(0), "calibration samples = 0 must be a whole number"),
        (lambda: Monitor(9, alpha=0.0), "alpha = 0.0 must be a number"),
        (lambda: Monitor(9, window=30), "window = 30 must be a multiple of 20"),
        (lambda: Monitor(9, streams=["a", "a"]), "two streams have the same name"),
        (lambda: Monitor(9).update([0.5, 1.5]), "1.5 is not a p-value"),
        (lambda: Monitor(9).update([0.5, float("nan")]), "nan is not a p-value"),
        (lambda: Monitor(9).update([0.5], is_ood=[True, False]), r"is_ood has the shape \(2,\)"),
        (lambda: Monitor(9).update(["a"]), "p_values must be numbers"),
        (lambda: Monitor(9).update([0.5], streams=np.array([1])), "stream 1 is not among the 1 streams"),
        (lambda: Monitor(9).update([0.5], streams=["a", "b"]), "streams has 2 entries for 1 inputs"),
        (
            lambda: Monitor(Reference((9,), class_counts=(4, 5))).update([0.5], classes=[2]),
            "class 2 is not among the 2",
        ),
        (lambda: Monitor(Reference((9, 9))).update([0.5], classes=[2]), "class 2 is not among the 2"),
        (lambda: Monitor(9).status("b"), "there is no stream 'b'"),
        (lambda: Monitor(9, streams=[]).update([0.5], streams=np.array([0])), "stream 0 is not among the 0"),
        (lambda: Reference((9,), class_counts=(-1, 10)), "the counts of predicted classes are not those"),
        (lambda: Reference((9,), class_names=("a",), class_counts=(4, 5)), "are not those of its classes"),
        (lambda: Reference((9,), scores=(np.zeros(8),)), "not as many as there are calibration samples"),
        (lambda: Reference.of(Detector(nn.Linear(3, 2))), "the detector has no threshold yet"),
        (lambda: Reference.of("nowhere/detector.safetensors"), "there is no such file; calibrate the run"),
    ],
)
def test_invalid_input(call: object, message: str) -> None:
    with pytest.raises(InputError, match=message):
        call()  # type: ignore[operator]


def test_a_file_that_is_no_detector(tmp_path: Path) -> None:
    path = tmp_path / "detector.safetensors"
    path.write_bytes(b"nothing")
    with pytest.raises(InputError, match="is not the file of a calibrated detector, or damaged"):
        Reference.of(tmp_path)


def test_torch_is_not_imported() -> None:
    code = "import sys, spcp; spcp.Monitor(99).update([0.5]); assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
