from __future__ import annotations

import functools
import threading
import types
from pathlib import Path
from typing import Any

import pytest
import torch
from test_bank import Counting, build
from torch import Tensor, nn

from spcp import SPCPLinear, apply_spcp, methods, networks
from spcp.contributions import evaluating
from spcp.errors import InputError
from spcp.model import ScoredModel


def test_the_network_is_left_as_it_was(tmp_path: Path) -> None:
    model = Counting().train()
    model.body[1].eval()  # a mixture of modes
    apply_spcp(model, rho_norm=1.0, total_steps=10)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    with pytest.warns(UserWarning, match="still its initial"):
        result = build(model, tmp_path)
    assert model.training
    assert model.dropout.training
    assert not model.body[1].training
    for name, value in model.state_dict().items():
        assert torch.equal(value, before[name]), name
    assert not result.features.requires_grad
    assert not model.fc._forward_hooks
    assert not model.fc._forward_pre_hooks
    with pytest.raises(ZeroDivisionError), evaluating(model):
        raise ZeroDivisionError
    assert model.dropout.training


def test_a_classifier_that_runs_twice() -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc = nn.Linear(4, 4)

        def forward(self, x: Tensor) -> Tensor:
            return self.fc(self.fc(x))

    with pytest.raises(InputError, match=r"the classifier of Twice saw \(2, 4\), \(2, 4\) in one pass"):
        ScoredModel(Twice(), classifier="fc").outputs(torch.randn(2, 4))


def trained() -> Counting:
    """A network in training mode whose head truncates."""
    network = apply_spcp(Counting(), rho_norm=1.0, total_steps=5)
    for _ in range(5):
        network(torch.randn(16, 1, 8, 8))
    return network


@pytest.mark.parametrize("truncate", [True, False])
def test_outputs_are_those_of_evaluation_mode(truncate: bool) -> None:
    network, x = trained(), torch.randn(8, 1, 8, 8)
    state = {name: value.clone() for name, value in network.state_dict().items()}
    model = ScoredModel(network, truncate=truncate)
    with torch.no_grad():
        outputs = model.outputs(x)
    assert network.training
    assert isinstance(network.fc, SPCPLinear)
    assert network.state_dict().keys() == state.keys()
    assert all(torch.equal(value, state[name]) for name, value in network.state_dict().items())
    with evaluating(network):
        features = network.body(x)
        plain = nn.functional.linear(features, network.fc.weight, network.fc.bias)
        logits = network.fc(features) if truncate else plain
    assert not torch.equal(network.eval().fc(features), plain)
    assert torch.equal(outputs.features, features)
    assert torch.equal(outputs.logits, logits)
    assert torch.equal(outputs.predictions, logits.argmax(1))
    assert torch.equal(model.head(features), logits)
    assert isinstance(model.head, SPCPLinear) == truncate
    assert not model.head.training


def test_changes_of_the_network_are_seen() -> None:
    network, x = Counting(), torch.randn(4, 1, 8, 8)
    model = ScoredModel(network)
    before = model.outputs(x)
    network.fc.register_forward_hook(lambda module, inputs, output: output * 2)
    assert torch.equal(model.outputs(x).logits, 2 * before.logits)
    network.to(torch.float64)
    assert model.outputs(x.double()).logits.dtype == torch.float64
    network.fc = nn.Linear(16, 7, dtype=torch.float64)
    assert model.outputs(x.double()).logits.shape == (4, 7)


class Indirect(nn.Module):
    """Reaches its layers in other ways than by their names."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.dropout, self.fc = nn.BatchNorm1d(4), nn.Dropout(0.5), nn.Linear(4, 3)
        self.layers = [self.norm, {"last": (self.dropout, self.fc)}]
        self.run = functools.partial(type(self).step, self)

    def step(self, x: Tensor) -> Tensor:
        first, rest = self.layers
        return rest["last"][1](rest["last"][0](first(x)))  # type: ignore[index,operator]

    def forward(self, x: Tensor) -> Tensor:
        return self.run(x)


def test_layers_in_lists_and_bound_methods_are_those_of_the_view() -> None:
    network, x = Indirect(), torch.randn(8, 4)
    network.forward = types.MethodType(lambda self, x: self.run(x) + 0, network)  # type: ignore[method-assign]
    outputs = ScoredModel(network, classifier="fc").outputs(x)
    assert int(network.norm.num_batches_tracked) == 0
    assert torch.equal(outputs.features, network.eval().norm(x))
    assert torch.equal(outputs.logits, network(x))


def test_compiled_models() -> None:
    network, x = Counting(), torch.randn(4, 1, 8, 8)
    expected = ScoredModel(network).outputs(x)
    compiled: Any = torch.compile(network, backend="eager")
    network.body.compile(backend="eager")
    for ours, theirs in zip(ScoredModel(compiled).outputs(x), expected, strict=True):
        assert torch.equal(ours, theirs)


@pytest.mark.parametrize("mode", [True, False])
@pytest.mark.parametrize("name", ["plain", "t2fnorm", "cider", "mos", "umap"])
def test_threads_may_share_a_model(name: str, mode: bool) -> None:
    """Also while it is in training mode, is hooked, or swaps its weights; it is never touched."""
    torch.manual_seed(0)
    network = networks.mlp(3, inputs=6, width=16)
    method = None if name == "plain" else methods.METHODS[name][0]()
    if method is not None:
        method.prepare(network, 5)
        method.train(mode)
    network.train(mode)
    network.classifier.register_forward_hook(lambda module, inputs, output: output + 1)
    inputs = [torch.randn(16, 6) for _ in range(8)]
    state = {key: value.clone() for key, value in network.state_dict().items()}
    touched: list[str] = []
    model = ScoredModel(network, method)
    with torch.no_grad():
        expected = [model.outputs(x) for x in inputs]

    def work(i: int) -> None:
        with torch.no_grad():
            for _ in range(30):
                outputs = model.outputs(inputs[i])
                if not all(map(torch.equal, outputs, expected[i])) or network.training != mode:
                    touched.append("outputs")
                if len(network.classifier._forward_hooks) != 1:
                    touched.append("hooks")

    threads = [threading.Thread(target=work, args=(i,)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not touched
    assert all(torch.equal(value, state[key]) for key, value in network.state_dict().items())
