"""Statistics of parts, merged, are those of the whole; and so are the scores that are fitted with them."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from spcp import files, processes
from spcp.bank import FeatureBank
from spcp.errors import InputError
from spcp.moments import ClassSums, Moments, Rows, Statistic, Sum, merge
from spcp.scores import SCORES, Fitting, Score, build_score

from .test_scores import OPTIONS, D, make_data, make_head

ROWS = 60
FITTED = [name for name, (kind, _) in SCORES.items() if kind.fitted_on]
STATISTICS: dict[str, Callable[[FeatureBank], Statistic]] = {
    "moments": lambda bank: bank.merged(lambda part: Moments.of(part.features, part.labels)),
    "sums by class": lambda bank: bank.merged(lambda part: ClassSums.of(part.features, part.labels)),
    "sum": lambda bank: bank.merged(lambda part: Sum.of(part.features.double().sum(0), torch.tensor(len(part.labels)))),
    "rows": lambda bank: bank.merged(lambda part: Rows.of(part.features)),
}


def numbers(statistic: Any) -> list[Tensor]:
    """What a statistic holds; rows in an order of their own."""
    if isinstance(statistic, Rows):
        rows = statistic.tensor
        return [rows[rows.sum(1).argsort()]]
    return list(statistic.values if isinstance(statistic, Sum) else vars(statistic).values())


def split(data: FeatureBank, cuts: list[int]) -> list[FeatureBank]:
    """The banks of several machines, one of which may have no rows."""
    parts = (data.features, data.logits, data.labels, data.predictions)
    return [
        FeatureBank.of(*rows) for rows in zip(*(tensor.tensor_split(sorted(cuts)) for tensor in parts), strict=True)
    ]


def fit_on_machines(score: Score, machines: list[FeatureBank], head: Any, order: list[int]) -> Score:
    """Fit a score on the rows of several machines, whose statistics arrive in some order."""
    before = [sum(map(len, machines[:i])) for i in range(len(machines))]
    for role in score.fitted_on:
        fitting = Fitting(score, head, role)
        while fitting.wanted:
            statistics = [fitting.statistic(machines[i], before[i]) for i in order]
            fitting.give(functools.reduce(merge, statistics))
    return score


@pytest.mark.parametrize("name", STATISTICS)
@settings(max_examples=25)
@given(cuts=st.lists(st.integers(0, ROWS), min_size=2, max_size=2))
def test_merging_is_associative_and_commutative(name: str, cuts: list[int]) -> None:
    data = make_data(make_head(False), ROWS, 1)
    a, b, c = map(STATISTICS[name], split(data, cuts))
    whole = numbers(STATISTICS[name](data))
    for merged in (a.merge(b).merge(c), a.merge(b.merge(c)), c.merge(a).merge(b)):
        for found, expected in zip(numbers(merged), whole, strict=True):
            torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("truncates", [False, True], ids=["plain", "truncating"])
@pytest.mark.parametrize("name", FITTED)
@settings(max_examples=4)
@given(cuts=st.lists(st.integers(0, ROWS), max_size=3), chance=st.randoms(use_true_random=False))
def test_a_score_is_fitted_where_the_data_is(name: str, truncates: bool, cuts: list[int], chance: Any) -> None:
    """Whatever the machines hold, and whoever is first: as a score that is fitted on all rows at once."""
    head = make_head(truncates)
    data, queries = make_data(head, ROWS, 1), make_data(head, 20, 2)
    options = {**OPTIONS.get(name, {}), **({"dim": D // 2} if name == "vim" else {})}
    machines = split(data, cuts)
    order = list(range(len(machines)))
    chance.shuffle(order)
    score = fit_on_machines(build_score(name, **options), machines, head, order)
    whole = build_score(name, **options).fit(data, head).fit_held_out(data, head)
    torch.testing.assert_close(score.scores(queries, head), whole.scores(queries, head), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", ["knn", "relation"])
def test_kept_rows_may_lie_in_a_file(name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    head = make_head(False)
    data, queries = make_data(head, 300, 1), make_data(head, 20, 2)
    expected = build_score(name).fit(data, head).scores(queries, head)
    monkeypatch.setattr(files, "IN_MEMORY", 0)
    monkeypatch.setenv("SPCP_CACHE", str(tmp_path))
    score = build_score(name).fit(data, head)
    assert files._MAPPED
    for _ in range(2):  # pages that were let go come back
        assert torch.equal(score.scores(queries, head), expected)


def test_a_share_of_the_rows_is_no_score(monkeypatch: pytest.MonkeyPatch) -> None:
    """What one of several processes keeps is used where they are joined only, and not saved."""
    head, data = make_head(False), make_data(make_head(False), 300, 1)
    monkeypatch.setattr(processes, "_place", (0, 2))
    score = build_score("consensus", members=["knn"]).fit(data, head)
    monkeypatch.setattr(processes, "_place", (0, 1))
    for use in (score.state_dict, lambda: score.fit_held_out(data, head)):
        with pytest.raises(InputError, match="KNN was fitted by several processes, each of which keeps a share"):
            use()


def test_the_guides_are_those_of_all_rows() -> None:
    """Which training samples guide is drawn among all, wherever they are."""
    head = make_head(False)
    data = make_data(head, 900, 1)
    score = fit_on_machines(build_score("nnguide", share=0.3), split(data, [500]), head, [0, 1])
    assert torch.equal(score.bank, build_score("nnguide", share=0.3).fit(data, head).bank)  # type: ignore[arg-type]
    fitting = Fitting(build_score("dice"), head)
    while fitting.wanted:
        fitting.give(fitting.statistic(data))
    with pytest.raises(InputError, match="DICE: is fitted; no statistic is wanted"):
        fitting.statistic(data)
