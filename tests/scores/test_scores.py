"""One battery that every score passes by being listed, and for each a slow reference, written blind."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from spcp import SPCPLinear, Truncation, scores
from spcp.bank import FeatureBank, Part
from spcp.contributions import plain_head
from spcp.errors import InputError
from spcp.scores import SCORES, Consensus, Score, build_score
from spcp.scores.knn import top_similarities

from . import slow

N, M, D, K = 40, 300, 24, 5
GROUPS = [[0, 1], [2]]  # two groups, each with its "others": 5 columns
OPTIONS: dict[str, dict[str, Any]] = {"knn": {"k": 7}, "nnguide": {"k": 9, "share": 0.8}, "mos": {"groups": GROUPS}}
NAMES = [name for name in SCORES if name != "odin"]


def make_head(truncates: bool, seed: int = 0) -> nn.Linear:
    torch.manual_seed(seed)
    head = nn.Linear(D, K)
    nn.init.normal_(head.weight)
    if truncates:
        SPCPLinear.convert_(head, Truncation(rho_norm=1.0, total_steps=10, initial_threshold=0.4))
        assert isinstance(head, SPCPLinear)
        head.updates.fill_(10)
    return head.eval()


def make_data(head: nn.Linear, rows: int, seed: int, offset: float = 0.0) -> FeatureBank:
    """Features of classes that the head tells apart, none below 0."""
    rng = torch.Generator().manual_seed(seed)
    y = torch.randint(K, (rows,), generator=rng)
    h = (torch.randn(rows, D, generator=rng) + head.weight.detach()[y] + offset).relu() + 0.01
    with torch.no_grad():
        return FeatureBank.of(h, head(h), y)


def fit_on(score: Score, data: FeatureBank, head: nn.Linear) -> Score:
    """On the same samples throughout, which is enough to test the arithmetic."""
    return score.fit(data, head).fit_held_out(data, head)


def fitted(name: str, head: nn.Linear) -> Score:
    return fit_on(build_score(name, **OPTIONS.get(name, {})), make_data(head, M, 1), head)


def reference(name: str, score: Score, head: nn.Linear, data: FeatureBank, fit: FeatureBank) -> np.ndarray:
    h, z, W = (tensor.double().numpy() for tensor in (data.features, data.logits, head.weight.detach()))
    b = head.bias.detach().double().numpy()
    H, Z, y = fit.features.double().numpy(), fit.logits.double().numpy(), fit.labels.numpy()
    lam = head.threshold.item() if isinstance(head, SPCPLinear) and head.truncation.stages == "both" else None
    o = score.options
    guides = torch.randperm(M, generator=torch.Generator().manual_seed(0))[:240]
    table: dict[str, Callable[[], np.ndarray]] = {
        "msp": lambda: slow.msp(z),
        "maxlogit": lambda: slow.maxlogit(z),
        "energy": lambda: slow.energy(z),
        "dice": lambda: slow.dice(h, W, b, H, o["p"], lam),
        "react": lambda: slow.react(h, W, b, H, o["percentile"], lam),
        "vra": lambda: slow.vra(h, W, b, H, o["low"], o["high"], lam),
        "vra-p": lambda: slow.vra_of_authors(h, W, b, H, o["low"], o["high"], lam),
        "ash": lambda: slow.ash(h, W, b, "b", o["percentile"], lam),
        "ash-s": lambda: slow.ash(h, W, b, "s", o["percentile"], lam),
        "ash-p": lambda: slow.ash(h, W, b, "p", o["percentile"], lam),
        "scale": lambda: slow.scale(h, W, b, o["percentile"], lam),
        "gradnorm": lambda: slow.gradnorm(h, W, b, lam),
        "knn": lambda: slow.knn(h, H, o["k"]),
        "vim": lambda: slow.vim(h, W, b, z, H, Z, D // 2),
        "mds": lambda: slow.mahalanobis(h, H, y),
        "rmds": lambda: slow.relative_mahalanobis(h, H, y),
        "mdspp": lambda: slow.mahalanobis(*(a / np.linalg.norm(a, axis=1, keepdims=True) for a in (h, H)), y),
        "itp": lambda: slow.itp(h, W, b, H, y, o["p"], o["l"], lam),
        "klm": lambda: slow.klm(z, Z),
        "gen": lambda: slow.gen(z, o["gamma"], o["M"]),
        "she": lambda: slow.she(h, z, H, Z, y),
        "fdbd": lambda: slow.fdbd(h, z, W, H),
        "nnguide": lambda: slow.nnguide(h, z, H[guides], Z[guides], o["k"]),
        "nci": lambda: slow.nci(h, z, W, H, o["alpha"]),
        "relation": lambda: slow.relation(h, z, H, Z, o["power"]),
        "two-views": lambda: slow.two_views(h, W, b, H, lam),
        "mos": lambda: slow.mos(z, GROUPS),
    }
    if isinstance(score, Consensus):  # of members that have their own reference
        members = [
            (member.scores(data, head).double().numpy(), member.scores(fit, head).double().numpy())
            for member in score.members_by_name().values()
        ]
        return slow.consensus(members, score.combine)
    return table[name]()


@pytest.fixture(params=[False, True], ids=["plain", "truncating"])
def head(request: pytest.FixtureRequest) -> nn.Linear:
    return make_head(request.param)


@pytest.mark.parametrize("name", NAMES)
class TestEvery:
    def test_equals_the_slow_reference(self, name: str, head: nn.Linear) -> None:
        data, fit = make_data(head, N, 2), make_data(head, M, 1)
        score = fitted(name, head)
        expected = reference(name, score, head, data, fit)
        np.testing.assert_allclose(score.scores(data, head).double().numpy(), expected, rtol=2e-4, atol=2e-4)

    def test_a_plain_head_by_request(self, name: str, head: nn.Linear) -> None:
        plain = plain_head(head)
        fit, data = make_data(head, M, 1).with_head(plain), make_data(head, N, 2).with_head(plain)
        ours = fit_on(build_score(name, **OPTIONS.get(name, {})), fit, plain)
        other = make_head(False)
        theirs = fit_on(build_score(name, **OPTIONS.get(name, {})), fit, other)
        torch.testing.assert_close(ours.scores(data, plain), theirs.scores(data, other))

    def test_a_score_does_not_depend_on_the_batch(self, name: str, head: nn.Linear) -> None:
        data, score = make_data(head, N, 2), fitted(name, head)
        whole = score.scores(data, head)
        alone = torch.cat([score(data.features[i : i + 1], data.logits[i : i + 1], head).detach() for i in range(N)])
        order = torch.randperm(N)
        torch.testing.assert_close(alone, whole, rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(
            score(data.features[order], data.logits[order], head).detach(), whole[order], rtol=1e-4, atol=1e-4
        )

    def test_state_survives(self, name: str, head: nn.Linear, tmp_path: Any) -> None:
        from safetensors.torch import load_file, save_file

        data, score = make_data(head, N, 2), fitted(name, head)
        save_file({k: v.contiguous() for k, v in score.state_dict().items()}, tmp_path / "s.safetensors")
        again = build_score(name, **score.options)
        again.load_state_dict(load_file(tmp_path / "s.safetensors"))
        assert torch.equal(again.scores(data, head), score.scores(data, head))
        assert again.options == score.options

    def test_needs_to_be_fitted(self, name: str, head: nn.Linear) -> None:
        data, score = make_data(head, N, 2), build_score(name, **OPTIONS.get(name, {}))
        if not score.state:
            assert score.fitted_on == ()
            return
        assert {*score.fitted_on} & {"train", "val"}
        with pytest.raises(InputError, match="is not fitted; call fit"):
            score.scores(data, head)

    def test_nothing_in_nothing_out(self, name: str, head: nn.Linear) -> None:
        data = make_data(head, N, 2)
        assert fitted(name, head)(data.features[:0], data.logits[:0], head).shape == (0,)

    def test_shape_dtype_and_no_gradient(self, name: str, head: nn.Linear) -> None:
        data, score = make_data(head, N, 2), fitted(name, head)
        result = score.scores(data, head)
        assert result.shape == (N,)
        assert result.dtype == torch.float32
        assert result.isfinite().all()
        assert not result.requires_grad
        assert not any(buffer.requires_grad for buffer in score.buffers())

    def test_fitting_is_repeatable_and_in_parts(self, name: str, head: nn.Linear) -> None:
        """A bank in shards fits as one in memory does, and fitting again forgets what was before."""
        whole, data = make_data(head, M, 1), make_data(head, N, 2)
        shards = [slice(0, 100), slice(100, 101), slice(101, M)]
        parts = (whole.features, whole.logits, whole.labels, whole.predictions)
        sharded = FeatureBank([Part(*(tensor[rows] for tensor in parts)) for rows in shards])
        score = fit_on(build_score(name, **OPTIONS.get(name, {})), make_data(head, M, 9), head)
        fit_on(score, sharded, head)
        torch.testing.assert_close(
            score.scores(data, head), fitted(name, head).scores(data, head), rtol=1e-4, atol=1e-4
        )

    def test_nothing_is_on(self, name: str, head: nn.Linear) -> None:
        """A sample without any features on, beside one that is the mean of the training data."""
        score, fit = fitted(name, head), make_data(head, M, 1)
        h = torch.stack([torch.zeros(D), fit.features.mean(0)])
        with torch.no_grad():
            assert score(h, head(h), head).isfinite().all()

    @pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
    @pytest.mark.parametrize("where", [slice(None), slice(3, 4)], ids=["all", "one"])
    def test_features_that_are_not_finite_score_nan(
        self, name: str, head: nn.Linear, where: slice, value: float
    ) -> None:
        """So a detector flags them; the other rows of a batch score as without them."""
        data, score = make_data(head, 3, 2), fitted(name, head)
        h = data.features.clone()
        h[1, where] = value
        with torch.no_grad():
            found, expected = score(h, head(h), head), score.scores(data, head)
        assert found.isnan().tolist() == [False, True, False]
        torch.testing.assert_close(found[::2], expected[::2], rtol=1e-4, atol=1e-4)

    def test_heads_of_other_precision(self, name: str, head: nn.Linear) -> None:
        data, score = make_data(head, N, 2), fitted(name, head)
        expected = score.scores(data, head)
        double = copy.deepcopy(head).double()
        score = fit_on(build_score(name, **OPTIONS.get(name, {})), make_data(head, M, 1), double)
        result = score.scores(data, double)
        torch.testing.assert_close(result.float(), expected, rtol=1e-3, atol=1e-3)

    def test_half_precision_banks(self, name: str, head: nn.Linear) -> None:
        data, score = make_data(head, N, 2), fitted(name, head)
        half = FeatureBank.of(data.features.half(), data.logits.half(), data.labels)
        result, expected = score.scores(half, head), score.scores(data, head)
        assert result.dtype == torch.float32
        assert np.corrcoef(result, expected)[0, 1] > 0.999

    def test_says_what_it_is(self, name: str, head: nn.Linear) -> None:
        kind, options = SCORES[name]
        assert kind.paper
        assert kind.formula
        assert kind.cost
        assert kind.__doc__
        accepted = build_score(name, **OPTIONS.get(name, {})).options
        assert options.keys() <= accepted.keys()
        assert kind.sweep.keys() <= accepted.keys()
        assert kind.ranges.keys() <= accepted.keys()
        for values in kind.sweep.values():
            assert len(set(values)) == len(values) > 1


class Together(nn.Module):
    """Every score, in one graph: each graph takes long to write."""

    def __init__(self, head: nn.Linear) -> None:
        super().__init__()
        self.head, self.scores = head, nn.ModuleList(fitted(name, head) for name in NAMES)

    def forward(self, h: Tensor) -> tuple[Tensor, ...]:
        z = self.head(h)
        return tuple(score(h, z, self.head) for score in self.scores)


@pytest.fixture(scope="module")
def program() -> nn.Module:
    head = make_head(truncates=False)
    h = make_data(head, 8, 0).features
    return torch.export.export(Together(head), (h,), dynamic_shapes=({0: torch.export.Dim("batch")},)).module()


@pytest.mark.parametrize("name", NAMES)
def test_exports_as_it_scores(program: nn.Module, name: str) -> None:
    """As a graph, for batches of any size; with a truncating head: see test_export.py."""
    head = make_head(truncates=False)
    data = make_data(head, N, 2)
    with torch.no_grad():
        found = program(data.features)[NAMES.index(name)]
    torch.testing.assert_close(found, fitted(name, head).scores(data, head), rtol=1e-4, atol=1e-4)
    with torch.no_grad():
        assert program(torch.tensor([[math.nan] * D, [math.inf] * D]))[NAMES.index(name)].isnan().all()


def test_itp_does_not_prune_what_is_not_a_number(head: nn.Linear) -> None:
    fit, h = make_data(head, M, 1), torch.full((2, D), math.nan)
    h[1, 1:] = 0.5
    score = fitted("itp", head)
    W, b = head.weight.detach(), head.bias.detach()
    with torch.no_grad():
        assert score.score(h, head(h), head).isnan().all()
    assert np.isnan(slow.itp(*(t.numpy() for t in (h, W, b, fit.features, fit.labels)))).all()


@pytest.mark.parametrize("name", NAMES)
def test_one_class(name: str) -> None:
    """A network with a single output, where that means anything."""
    if name == "mos":
        pytest.skip("groups of one class and others are two outputs")
    torch.manual_seed(0)
    head = nn.Linear(D, 1)
    h = torch.rand(M, D)
    with torch.no_grad():
        data = FeatureBank.of(h, head(h), torch.zeros(M, dtype=torch.int64))
    assert fit_on(build_score(name, **OPTIONS.get(name, {})), data, head).scores(data, head).isfinite().all()


@pytest.mark.parametrize(("rows", "guides"), [(100, 100), (1000, 200), (30_000, 300)])
def test_nnguide_keeps_at_least_200_guides(rows: int, guides: int) -> None:
    """A hundredth of the training samples, but no fewer than 200, or all if there are not so many."""
    head = make_head(False)
    assert len(scores.NNGuide().fit(make_data(head, rows, 1), head).bank) == guides


def test_far_away_scores_lower() -> None:
    """What is far from all training data gets a lower score from those that measure distance."""
    head = make_head(False)
    far = make_data(head, N, 3, offset=8.0)
    for name in ("mds", "vim", "knn"):
        score = fitted(name, head)
        assert score.scores(far, head).median() < score.scores(make_data(head, N, 2), head).median(), name


def test_mahalanobis_keeps_its_digits_far_from_the_origin() -> None:
    head = make_head(False)
    near, fit = make_data(head, N, 2), make_data(head, M, 1)
    expected = scores.Mahalanobis().fit(fit, head).scores(near, head)
    moved = [FeatureBank.of(bank.features + 1000.0, bank.logits, bank.labels) for bank in (near, fit)]
    result = scores.Mahalanobis().fit(moved[1], head).scores(moved[0], head)
    torch.testing.assert_close(result, expected, rtol=2e-3, atol=2e-3)


@pytest.mark.parametrize("rows", [30, 3000])
def test_mahalanobis_of_features_that_do_not_fill_the_space(rows: int) -> None:
    """Fewer samples than features, or features that depend on each other: the pseudoinverse has their rank."""
    torch.manual_seed(0)
    head, y = nn.Linear(64, 3), torch.arange(rows) % 3
    mixing = torch.randn(16, 64)
    h, ood = (torch.randn(n, 16) @ mixing for n in (rows, 20))
    data = FeatureBank.of(h, torch.zeros(rows, 3), y)
    whole = h.double().numpy()
    means = np.stack([whole[y == k].mean(0) for k in range(3)])
    inverse = np.linalg.pinv((whole - means[y]).T @ (whole - means[y]) / rows, rcond=1e-9)
    away = ood.double().numpy()[:, None] - means
    expected = -np.einsum("bkd,de,bke->bk", away, inverse, away).min(1)
    result = scores.Mahalanobis().fit(data, head).scores(FeatureBank.of(ood, torch.zeros(20, 3)), head)
    np.testing.assert_allclose(result, expected, rtol=1e-3)


def test_odin() -> None:
    """Against the formula, by finite differences: the input moves against the sign of the gradient of its loss."""
    torch.manual_seed(0)
    W = torch.randn(3, 6, dtype=torch.float64)

    def logits(x: Tensor) -> Tensor:
        return x.tanh() @ W.t()

    x = torch.randn(4, 6, dtype=torch.float64)
    T, eps = 10.0, 0.3
    moved = x.clone()
    for i in range(4):
        k = int(logits(x[i : i + 1]).argmax())
        for d in range(6):
            up, down = x[i].clone(), x[i].clone()
            up[d] += 1e-5
            down[d] -= 1e-5
            loss = [-(logits(near[None]) / T).log_softmax(1)[0, k] for near in (up, down)]
            moved[i, d] -= eps * torch.sign(loss[0] - loss[1])
    expected = (logits(moved) / T).softmax(1).amax(1)
    torch.testing.assert_close(scores.ODIN(T=T, eps=eps).score_inputs(logits, x), expected)
    image = torch.randn(2, 3, 4, 4)
    score = scores.ODIN(T=2.0, eps=0.1, std=(0.5, 1.0, 2.0))
    result = score.score_inputs(lambda inputs: inputs.tanh().mean((2, 3)), image)
    assert result.shape == (2,)
    assert not result.requires_grad


@pytest.mark.parametrize("name", [name for name, (kind, _) in SCORES.items() if kind.fitted_on])
def test_predicted_classes_stand_in_for_labels(name: str, caplog: pytest.LogCaptureFixture) -> None:
    head = make_head(False)
    labelled = make_data(head, M, 1)
    h, z = labelled.features, labelled.logits
    fitted = fit_on(build_score(name), FeatureBank.of(h, z, z.argmax(1)), head)
    assert not caplog.messages
    bank = FeatureBank.of(h, z)
    unlabelled = fit_on(build_score(name), bank, head)
    build_score("she").fit(bank, head)  # which asks for two kinds of moments
    assert torch.equal(unlabelled.scores(bank, head), fitted.scores(bank, head))
    assert caplog.messages == [f"{M} of {M} samples have no label; their predicted classes stand in"]


def test_bad_names_and_options() -> None:
    with pytest.raises(InputError, match=r"no score 'enrgy' \(did you mean 'energy'\?\); choose one of msp, maxlogit"):
        build_score("enrgy")
    with pytest.raises(InputError, match=r"'auto' is no score, but chooses one; call spcp\.choice\.auto_detector"):
        build_score("auto")
    with pytest.raises(InputError, match=r"knn: .*'K'"):
        build_score("knn", K=3)
    for name, options, message in (
        ("react", {"percentile": 0.9}, r"ReAct: percentile = 0.9 must be from 1 to 100, in percent"),
        ("knn", {"k": 0}, "KNN: k = 0 must be at least 1"),
        ("energy", {"T": 0}, "Energy: T = 0 must be at least"),
    ):
        with pytest.raises(InputError, match=message):
            build_score(name, **options)
    head = make_head(False)
    with pytest.raises(InputError, match="ASH: kind = 'S' must be"):
        build_score("ash", kind="S").scores(make_data(head, 3, 1), head)
    with pytest.raises(InputError, match=r"ViM: dim = 24 leaves nothing of 24 features"):
        scores.ViM(dim=24).fit(make_data(head, M, 1), head)
    with pytest.raises(InputError, match="a label is 99, but the network has"):
        scores.Mahalanobis().fit(FeatureBank.of(torch.randn(9, D), torch.randn(9, K), torch.full((9,), 99)), head)
    with pytest.raises(InputError, match=r"they must be \(N, D\), \(N, K\), \(N,\) and \(N,\)"):
        FeatureBank.of(torch.randn(9, D), torch.randn(8, K))


@pytest.mark.parametrize(("rows", "bank", "k"), [(5, 5000, 3), (2100, 4096, 50), (3, 100, 100), (7, 6151, 1)])
@pytest.mark.parametrize("ties", [False, True])
def test_nearest_neighbours_in_tiles(rows: int, bank: int, k: int, ties: bool) -> None:
    """Several tiles of rows and columns, some of them ragged, against a sort."""
    torch.manual_seed(0)
    f, features = torch.randn(rows, 4), torch.randn(bank, 4)
    if ties:
        f, features = f.round(), features.round()
    result = top_similarities(f, features, k).sort(1, descending=True).values
    torch.testing.assert_close(result, (f @ features.t()).sort(1, descending=True).values[:, :k])


def test_only_what_can_be_fitted_is_applicable() -> None:
    """A consensus is, if all of its members are; the default finds members itself."""
    without, names = scores.applicable(["val"]), scores.applicable(["train", "val"])
    assert {"consensus", "consensus-logits", "react", "energy"} <= set(without)
    assert not {"consensus-large", "mds", "knn"} & set(without)
    assert {"consensus-large", "mds", "knn", *without} <= set(names)
