"""Statistics of parts, merged, are those of the whole; and so are the scores that are fitted with them."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from spcp.bank import FeatureBank
from spcp.errors import InputError
from spcp.moments import Moments, Rows, Statistic, Sum, merge
from spcp.scores import SCORES, Fitting, Score, build_score

from .test_scores import OPTIONS, D, K, make_data, make_head

ROWS = 60
FITTED = [name for name, (kind, _) in SCORES.items() if kind.fitted_on]
STATISTICS: dict[str, Callable[[FeatureBank], Statistic]] = {
    "moments": lambda bank: bank.merged(lambda part: Moments.of(part.features, part.labels, K)),
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
