from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from methods import slow
from torch import Tensor, nn

from spcp import SPCPLinear, Truncation
from spcp.methods import CIDER, MOS, SNN, UMAP, VOS, CrossEntropy, LogitNorm, Method, T2FNorm
from spcp.methods.base import normalised
from spcp.methods.cider import compactness, dispersion, update_prototypes
from spcp.methods.logitnorm import logitnorm_loss
from spcp.methods.mos import mos_class_scores, mos_loss, mos_score
from spcp.methods.snn import snn_logits
from spcp.methods.t2fnorm import t2fnorm_features
from spcp.methods.umap import top_share_mask, umap_loss
from spcp.methods.vos import tied_gaussian, uncertainty_loss, virtual_outliers, weighted_energy
from spcp.networks import Network, cnn, mlp

B, D, K = 9, 16, 5
SPCP = Truncation(rho_norm=0.5)


@pytest.fixture
def batch() -> dict[str, Tensor]:
    rng = torch.Generator().manual_seed(1)
    draw = lambda *shape: torch.randn(*shape, generator=rng, dtype=torch.float64)  # noqa: E731
    y = torch.tensor([0, 1, 2, 3, 4, 0, 0, 2, 4])
    return {
        "h": draw(B, D),
        "W": draw(K, D),
        "b": draw(K),
        "z": 3 * draw(B, K),
        "y": y,
        "u": normalised(draw(B, D)),
        "p": normalised(draw(K, D)),
    }


def close(ours: Tensor, theirs: Any) -> None:
    np.testing.assert_allclose(ours.detach().numpy(), theirs, rtol=1e-9, atol=1e-12)


def arrays(batch: dict[str, Tensor], names: str) -> list[np.ndarray]:
    return [batch[name].numpy() for name in names]


@pytest.mark.parametrize("tau", [0.04, 1.0])
def test_logitnorm(batch: dict[str, Tensor], tau: float) -> None:
    close(logitnorm_loss(batch["z"], batch["y"], tau), slow.logitnorm_loss(*arrays(batch, "zy"), tau))


@pytest.mark.parametrize("normalise", [True, False])
def test_t2fnorm(batch: dict[str, Tensor], normalise: bool) -> None:
    z = t2fnorm_features(batch["h"], 0.1, normalise) @ batch["W"].t() + batch["b"]
    close(z, slow.t2fnorm_logits(*arrays(batch, "hWb"), 0.1, normalise))


@pytest.mark.parametrize("momentum", [0.5, 0.95])
def test_cider(batch: dict[str, Tensor], momentum: float) -> None:
    moved = update_prototypes(batch["p"], batch["u"], batch["y"], momentum)
    close(moved, slow.update_prototypes(*arrays(batch, "puy"), momentum))
    close(compactness(batch["u"], batch["y"], batch["p"], 0.1), slow.compactness(*arrays(batch, "uyp"), 0.1))
    close(dispersion(batch["p"], 0.1), slow.dispersion(batch["p"].numpy(), 0.1))


@pytest.mark.parametrize("s", [1, 4, D])
def test_snn(batch: dict[str, Tensor], s: int, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = slow.snn_logits(*arrays(batch, "hWb"), s)
    close(snn_logits(batch["h"], batch["W"], batch["b"], s), expected)
    monkeypatch.setattr("spcp.methods.snn.CHUNK", 2 * K * D)
    close(snn_logits(batch["h"], batch["W"], batch["b"], s), expected)


def test_vos(batch: dict[str, Tensor]) -> None:
    w = torch.tensor([0.5, 1.0, 2.0, -1.0, 0.1], dtype=torch.float64)
    close(weighted_energy(batch["z"], w), slow.weighted_energy(batch["z"].numpy(), w.numpy()))
    close(weighted_energy(1000 * batch["z"], w), slow.weighted_energy(1000 * batch["z"].numpy(), w.numpy()))
    means, covariance = tied_gaussian(batch["h"], batch["y"], K)
    theirs = slow.tied_covariance(*arrays(batch, "hy"), K)
    close(means, theirs[0])
    close(covariance, theirs[1])
    logistic = nn.Linear(1, 1).double()
    loss = uncertainty_loss(batch["z"][:, 0], batch["z"][:3, 1], logistic)
    weight, bias = logistic.weight.item(), logistic.bias.item()
    close(loss, slow.vos_uncertainty_loss(batch["z"][:, 0].numpy(), batch["z"][:3, 1].numpy(), weight, bias))


def test_virtual_outliers_are_the_least_likely_of_many_draws() -> None:
    """In distribution: against really drawing, and keeping the least likely."""
    rng = np.random.default_rng(0)
    root = rng.normal(size=(4, 4))
    covariance, mean, draws = root @ root.T + np.eye(4), rng.normal(size=4), 50
    inverse = np.linalg.inv(covariance)
    theirs = []
    for _ in range(2000):
        drawn = rng.multivariate_normal(mean, covariance, draws)
        theirs.append(drawn[slow.least_likely(mean, covariance, drawn)])
    ours = virtual_outliers(torch.tensor(np.tile(mean, (2000, 1))), torch.tensor(covariance), draws).numpy()
    distance = [np.einsum("nd,de,ne->n", x - mean, inverse, x - mean) for x in (ours, np.array(theirs))]
    for level in (0.1, 0.5, 0.9):
        quantiles = [np.quantile(squares, level) for squares in distance]
        assert abs(quantiles[0] / quantiles[1] - 1) < 0.05
    spread = [np.cov((x - mean).T) for x in (ours, np.array(theirs))]
    np.testing.assert_allclose(spread[0], spread[1], rtol=0.25, atol=0.5 * np.abs(covariance).max())


@pytest.mark.parametrize("groups", [[[0, 1, 2, 3, 4]], [[0, 1], [2, 3, 4]], [[4, 0], [2], [3, 1]]])
def test_mos(batch: dict[str, Tensor], groups: list[list[int]]) -> None:
    z = torch.randn(B, K + len(groups), dtype=torch.float64)
    close(mos_loss(z, batch["y"], groups), slow.mos_loss(z.numpy(), batch["y"].numpy(), groups))
    close(mos_score(z, groups), slow.mos_score(z.numpy(), groups))
    close(mos_class_scores(z, groups), slow.mos_class_scores(z.numpy(), groups))


def test_umap(batch: dict[str, Tensor]) -> None:
    for share in (0.0, 0.25, 0.8, 1.0):
        mask = top_share_mask(batch["W"], share)
        assert np.array_equal(mask.numpy(), slow.top_share_mask(batch["W"].numpy(), share))
    for eta in (0.0, 0.5, 50.0):
        close(umap_loss(batch["z"], batch["y"], eta), slow.umap_loss(*arrays(batch, "zy"), eta))


METHODS: dict[str, Callable[[], Method]] = {
    "plain": CrossEntropy,
    "spcp": lambda: CrossEntropy(truncation=SPCP),
    "fixed threshold": lambda: CrossEntropy(truncation=Truncation(0.5, beta=1.0, initial_threshold=0.2)),
    "l2": lambda: CrossEntropy(penalty=0.01),
    "logitnorm": LogitNorm,
    "logitnorm+spcp": lambda: LogitNorm(truncation=SPCP),
    "t2fnorm": T2FNorm,
    "t2fnorm+spcp": lambda: T2FNorm(truncation=SPCP),
    "cider": CIDER,
    "cider+spcp": lambda: CIDER(truncation=SPCP),
    "snn": SNN,
    "vos": lambda: VOS(samples=8, draws=50, start=0.0),
    "vos+spcp": lambda: VOS(samples=8, draws=50, start=0.0, truncation=SPCP),
    "mos": MOS,
    "umap": UMAP,
}


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.filterwarnings("ignore:.*SPCP.*:UserWarning")
def test_every_method_learns(name: str) -> None:
    """A few steps lower its loss, its gradient reaches all that it should train, and its state comes back."""
    torch.manual_seed(0)
    method, network = METHODS[name](), mlp(4, inputs=10, width=32)
    centres = 2 * torch.randn(4, 10)
    y = torch.arange(64) % 4
    x = centres[y] + 0.5 * torch.randn(64, 10)
    method.prepare(network, total_steps=100)
    method.begin(network, [(x, y)])
    trained = [p for p in (*network.parameters(), *method.parameters()) if p.requires_grad]
    optimizer = torch.optim.SGD(trained, lr=0.02, momentum=0.9)
    losses = []
    for step in range(100):
        views = x if method.views == 1 else torch.cat([x + 0.1 * torch.randn_like(x) for _ in range(method.views)])
        loss, logits = method(network, views, y, step / 100)
        assert logits.shape == (64, 4)
        optimizer.zero_grad()
        loss.backward()
        assert all(p.grad is not None and p.grad.isfinite().all() for p in trained)
        if step == 5:
            reached = [p.grad.abs().sum() > 0 for p in network.parameters() if p.requires_grad and p.grad is not None]
            assert all(reached)
        optimizer.step()
        losses.append(loss.item())
    if name == "umap":
        assert losses[-1] <= losses[0] + 1e-3  # it starts close to its aim
    else:
        assert sum(losses[-5:]) < 0.9 * sum(losses[:5])
    if name not in ("umap", "cider", "cider+spcp"):
        assert (logits.argmax(1) == y).float().mean() > 0.9
    again, other = METHODS[name](), mlp(4, inputs=10, width=32)
    again.prepare(other, total_steps=100)
    other.load_state_dict(network.state_dict())
    again.load_state_dict(method.state_dict())
    if hasattr(again, "names"):
        assert again.names == method.names
    network.eval(), other.eval()
    assert torch.equal(network(x), other(x))


def test_spcp_truncates_the_right_layer() -> None:
    network, method = mlp(4, inputs=10, width=32), CIDER(truncation=SPCP)
    method.prepare(network, 10)
    assert isinstance(method.projection[-1], SPCPLinear)
    assert not isinstance(network.classifier, SPCPLinear)
    network = mlp(4, inputs=10, width=32)
    CrossEntropy(truncation=Truncation(0.5, beta=1.0, initial_threshold=0.3)).prepare(network, 10)
    assert isinstance(network.classifier, SPCPLinear)
    network.train()(torch.randn(8, 10))
    assert network.classifier.threshold.item() == pytest.approx(0.3)


def test_vos_leaves_the_threshold_to_real_features() -> None:
    network, method = mlp(3, inputs=6, width=16), VOS(samples=4, draws=20, start=0.0, truncation=SPCP)
    method.prepare(network, 100)
    x, y = torch.randn(30, 6), torch.arange(30) % 3
    method(network, x, y, 0.0)
    head = network.classifier
    assert isinstance(head, SPCPLinear)
    assert head.updates.item() == 1
    method(network, x, y, 0.5)
    assert head.updates.item() == 2
    assert head.training


def test_umap_learns_by_the_size_of_its_scores() -> None:
    """The mask ranks |score|, so the gradient of a weight reaches its score with the sign of the score."""
    torch.manual_seed(0)
    network, method = mlp(3, inputs=6, width=8).double(), UMAP().double()
    method.prepare(network, 10)
    method.eta.fill_(0.0)  # the loss is the cross entropy
    assert all((scores < 0).any() and (scores > 0).any() for scores in method.scores)  # at random
    x, y = torch.randn(12, 6, dtype=torch.float64), torch.arange(12) % 3
    method(network, x, y)[0].backward()
    masked = {name: w.detach().requires_grad_() for name, w in method.masked_weights(network).items()}
    torch.nn.functional.cross_entropy(torch.func.functional_call(network, masked, (x,)), y).backward()
    weights = dict(network.named_parameters())
    for name, scores in zip(method.names, method.scores, strict=True):
        gradient, held = masked[name].grad, weights[name].detach()
        assert gradient is not None
        assert scores.grad is not None
        close(scores.grad, slow.umap_score_gradient(gradient.numpy(), held.numpy(), scores.detach().numpy()))


def test_umap_has_batch_statistics_of_its_own() -> None:
    """They start as the trained network's and follow the masked one; the unmasked network keeps its own."""
    torch.manual_seed(0)
    network, method = cnn(4, width=4), UMAP()
    x, y = torch.randn(16, 1, 28, 28), torch.arange(16) % 4
    network.train()(x)
    method.prepare(network, 10)
    method.begin(network, [(x, y)])
    before = network.state_dict(keep_vars=False)
    before = {name: value.clone() for name, value in before.items()}
    name = next(name for name in before if name.endswith("running_mean"))
    own = getattr(method, "masked_" + name.replace(".", "_"))
    assert torch.equal(own, before[name])
    method(network.train(), x, y)
    assert not torch.equal(own, before[name])
    assert all(torch.equal(value, before[key]) for key, value in network.state_dict().items())
    network.eval()
    torch.testing.assert_close(method.outputs(network, x[:3]).logits, method.outputs(network, x).logits[:3])


def test_cider_starts_at_the_means_of_the_classes() -> None:
    torch.manual_seed(0)
    network, method = mlp(4, inputs=6, width=16), CIDER()
    method.prepare(network, 10)
    x, y = torch.randn(20, 6), torch.arange(20) % 3  # nothing of the fourth class
    before = method.prototypes[3].clone()
    method.begin(network, [(x[:9], y[:9]), (x[9:], y[9:])])
    with torch.no_grad():
        u = normalised(method.projection(network.eval().forward_features(x)))
    np.testing.assert_allclose(method.prototypes[:3], slow.class_means(u.numpy(), y.numpy(), 3), rtol=1e-4, atol=1e-6)
    assert torch.equal(method.prototypes[3], before)


def test_umap_keeps_the_weights_and_finds_eta() -> None:
    network: Network = cnn(4, width=4)
    before = {name: value.clone() for name, value in network.state_dict().items()}
    method = UMAP()
    method.prepare(network, 10)
    x, y = torch.randn(16, 1, 28, 28), torch.arange(16) % 4
    network.eval()
    method.begin(network, [(x[:10], y[:10]), (x[10:], y[10:])])
    assert method.eta > 0
    loss, _ = method(network, x, y)
    loss.backward()
    assert all(torch.equal(value, before[name]) for name, value in network.state_dict().items())
    assert all(scores.grad is not None and scores.grad.abs().sum() > 0 for scores in method.scores)


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: SNN(truncation=SPCP), "selects contributions by another rule"),
        (lambda: SNN(share=0.0), "share must be above 0"),
        (lambda: UMAP(truncation=SPCP), "trained already"),
        (lambda: CrossEntropy(penalty=-1.0), "penalty must be at least 0"),
        (lambda: MOS(groups=[[0, 1], [1, 2]]).prepare(mlp(4, inputs=3), 1), "each of the 4 classes once"),
    ],
)
def test_bad_options(build: Callable[[], object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        build()
