"""The consensus of scores: its combinations, its tails, which members it has, and the promise it keeps."""

from __future__ import annotations

import logging
import math

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from spcp.bank import FeatureBank
from spcp.conformal import log_p_value, split, threshold_rank
from spcp.errors import InputError
from spcp.scores import COMBINATIONS, MEMBERS, Consensus, Energy, build_score
from spcp.scores.consensus import normal_score

from . import slow
from .test_scores import M, N, fit_on, make_data, make_head


@pytest.mark.parametrize("combine", COMBINATIONS)
def test_every_combination_equals_its_slow_reference(combine: str) -> None:
    head = make_head(False)
    data, fit = make_data(head, N, 2, offset=0.3), make_data(head, M, 1)
    score = fit_on(Consensus(members=("energy", "mds", "fdbd"), combine=combine), fit, head)
    assert isinstance(score, Consensus)
    members = [
        (member.scores(data, head).double().numpy(), member.scores(fit, head).double().numpy())
        for member in score.members_by_name().values()
    ]
    np.testing.assert_allclose(score.scores(data, head), slow.consensus(members, combine), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("combine", COMBINATIONS)
def test_what_is_far_away_stays_in_order(combine: str) -> None:
    """Finite and strictly falling, from the middle of the ID scores to where float64 has no p-value any more."""
    head = nn.Linear(1, 2, bias=False)
    nn.init.ones_(head.weight)

    def bank(values: Tensor) -> FeatureBank:
        h = values[:, None]
        return FeatureBank.of(h, head(h).detach(), torch.zeros(len(values), dtype=torch.int64))

    held_out = torch.randn(200, generator=torch.Generator().manual_seed(0))
    score = Consensus(members=("energy", "maxlogit"), combine=combine).fit_held_out(bank(held_out), head)
    far = -torch.logspace(-1, 6, 200)
    scores = score.scores(bank(far), head)
    assert scores.isfinite().all()
    assert (scores.diff() < 0).all()
    assert score.scores(bank(torch.tensor([1.0, 1e30])), head).isfinite().all()
    assert score.scores(bank(torch.tensor([math.nan])), head).isnan().all()  # a detector flags it


def test_p_values_are_monotone_and_finite() -> None:
    for id_scores in (torch.randn(99), torch.randn(99).round(), torch.full((99,), 0.25), torch.randn(1)):
        reference = id_scores.double().sort().values
        s = torch.linspace(-50, 50, 20_001, dtype=torch.float64)
        log_p = log_p_value(s, reference)
        assert log_p.isfinite().all()
        assert (log_p.diff() >= 0).all()
        assert (log_p.diff()[s[:-1] < reference[0]] > 0).all()
        assert log_p.max() <= 0
    u = normal_score(torch.linspace(-2000, -1e-12, 100_001, dtype=torch.float64))
    assert u.isfinite().all()
    assert (u.diff() > 0).all()


def test_members() -> None:
    """By default those of training data; those of logits where there is none; what is named is kept or reported."""
    head = make_head(False)
    data, fit = make_data(head, N, 2), make_data(head, M, 1)
    assert (*(fit_on(Consensus(), fit, head).options["members"] or ()),) == MEMBERS["default"]
    score = Consensus().fit_held_out(fit, head)
    assert (*(score.members or ()),) == MEMBERS["logits"]
    assert (*(fit_on(score, fit, head).options["members"] or ()),) == MEMBERS["default"]  # now there is training data
    named = fit_on(Consensus(members={"knn": {"k": 3}, "energy": {"T": 2.0}}), fit, head)
    knn, energy = build_score("knn", k=3).fit(fit, head), Energy(T=2.0)
    expected = slow.consensus([(m.scores(data, head).numpy(), m.scores(fit, head).numpy()) for m in (knn, energy)])
    np.testing.assert_allclose(named.scores(data, head), expected, rtol=1e-3, atol=1e-3)
    for members, message in (
        (("odin",), r"must be scores of features, not \['odin'\]"),
        ((), "not none"),
        (("energi",), "there is no score 'energi'"),
        (("consensus",), "there is no score 'consensus'"),
    ):
        with pytest.raises(InputError, match=message):
            build_score("consensus", members=members)
    with pytest.raises(InputError, match="combine = 'sum' must be one of log, minimum"):
        build_score("consensus", combine="sum")


def test_many_classes_get_members_that_do_not_look_at_every_contribution() -> None:
    h = torch.randn(100, 43, generator=torch.Generator().manual_seed(0)).relu()
    for classes, members in ((10, ["mds", "mdspp", "itp", "gradnorm"]), (100_000, ["energy", "mds", "mdspp", "she"])):
        head = nn.Linear(43, classes)
        with torch.no_grad():
            data = FeatureBank.of(h, head(h), torch.arange(100) % 10)
        assert list(fit_on(Consensus(), data, head).options["members"]) == members


def test_members_that_do_not_apply_are_left_out(caplog: pytest.LogCaptureFixture) -> None:
    head = make_head(False)
    fit = make_data(head, M, 1)
    score = Consensus(members=("knn", "energy", "mds"))
    with caplog.at_level(logging.WARNING, logger="spcp"):
        score.fit_held_out(fit, head)
    assert list(score.members or ()) == ["energy"]
    assert "consensus: without knn, mds (there is no training data to fit them on)" in caplog.text
    with pytest.raises(InputError, match="none of knn can be a member, because there is no training data"):
        Consensus(members=("knn",)).fit_held_out(fit, head)
    by_default = Consensus()
    by_default.check_readable(("outputs",), "CIDER")
    assert list(fit_on(by_default, fit, head).options["members"]) == ["mds", "mdspp"]
    with pytest.raises(InputError, match="ViM: reads the last layer, and networks trained by CIDER have none"):
        build_score("vim").check_readable(("outputs",), "CIDER")


@pytest.mark.parametrize("ties", [False, True])
@pytest.mark.parametrize(
    ("n", "alpha", "draws"), [(40, 0.05, 600), (50, 0.05, 600), (100, 0.1, 400), (300, 0.01, 600), (1000, 0.05, 100)]
)
def test_at_most_alpha_is_flagged_however_members_depend_on_each_other(
    n: int, alpha: float, draws: int, ties: bool
) -> None:
    """Over draws of held-out samples and of new ones; one member repeats another, one is its opposite."""
    rng = np.random.default_rng(n)
    new = 100
    flagged = []
    reference, rest = split(n, alpha)
    for _ in range(draws):
        x = rng.normal(size=(n + new, 2))
        scores = np.stack([x[:, 0], x[:, 0] + 0.01 * x[:, 1], -x[:, 0], x[:, 1] ** 3])
        members = torch.tensor(scores.round(0 if ties else 9))
        id_scores = members[:, reference].sort(1).values
        log_p = torch.stack([log_p_value(s, r) for s, r in zip(members, id_scores, strict=True)], 1)
        combined = COMBINATIONS["log"](log_p).float()
        threshold = combined[rest].sort().values[threshold_rank(len(rest), alpha) - 1]
        flagged.append(float((combined[n:] < threshold).double().mean()))
    error = 3 * np.std(flagged) / math.sqrt(draws)
    assert np.mean(flagged) <= alpha + error
    if not ties:
        assert abs(np.mean(flagged) - alpha) <= error + 1e-9  # and no less: `split` lets alpha (m + 1) be whole
