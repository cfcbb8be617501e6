from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn

from spcp import apply_spcp, find_classifier
from spcp.errors import InputError
from spcp.networks import (
    Network,
    adapt,
    audio_cnn,
    cnn,
    densenet100,
    load_model,
    mlp,
    resnet10,
    resnet18,
    resnet18_224,
    whitened_cnn,
    wideresnet28,
)

SMALL: dict[str, tuple[Callable[[], Network], tuple[int, ...], int]] = {
    "resnet18": (lambda: resnet18(7, width=8), (3, 32, 32), 64),
    "resnet18_224": (lambda: resnet18_224(7, width=8), (3, 96, 96), 64),
    "wideresnet28": (lambda: wideresnet28(7, width=1), (3, 32, 32), 64),
    "densenet100": (lambda: densenet100(7, width=4), (3, 32, 32), 114),
    "resnet10": (lambda: resnet10(7, width=8), (3, 32, 32), 512),
    "whitened_cnn": (lambda: whitened_cnn(7, width=8), (3, 32, 32), 64),
    "cnn": (lambda: cnn(7, width=8), (1, 28, 28), 64),
    "audio_cnn": (lambda: audio_cnn(7, width=4), (1, 40, 101), 64),
    "mlp": (lambda: mlp(7, inputs=20, width=32), (20,), 32),
}


@pytest.mark.parametrize(
    ("network", "count"),
    [
        (lambda: resnet18(10), 11_173_962),
        (lambda: resnet18(100), 11_220_132),
        (lambda: resnet18_224(1000), 11_689_512),
        (lambda: wideresnet28(10), 36_479_194),
        (lambda: wideresnet28(100), 36_536_884),
        (lambda: densenet100(10), 769_162),
        (lambda: densenet100(100), 800_032),
    ],
)
def test_as_many_parameters_as_published(network: Callable[[], nn.Module], count: int) -> None:
    with torch.device("meta"):
        assert sum(p.numel() for p in network().parameters()) == count


@pytest.mark.parametrize("name", SMALL)
def test_features_and_classifier(name: str) -> None:
    build, shape, width = SMALL[name]
    network = build().eval()
    x = torch.randn(3, *shape)
    h = network.forward_features(x)
    assert h.shape == (3, width)
    assert h.min() >= 0  # as the methods that edit features expect
    assert torch.equal(network(x), network.classifier(h))
    assert find_classifier(network)[0] == "classifier"
    apply_spcp(network, rho_norm=1.0, total_steps=10)
    network.train()(x).sum().backward()
    assert all(p.grad is not None for p in network.parameters())


def test_models_of_others() -> None:
    class Theirs(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.stem = nn.Sequential(nn.Flatten(), nn.Linear(12, 16), nn.ReLU())
            self.fc = nn.Linear(16, 5)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.fc(self.stem(x))

    for model, x in (
        (Theirs(), torch.randn(4, 3, 4)),
        (nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3)), torch.randn(4, 6)),
    ):
        expected = model(x)
        parameters = {id(p) for p in model.parameters()}
        network = adapt(model)
        assert torch.equal(network(x), expected)
        assert torch.equal(network.classifier(network.forward_features(x)), expected)
        assert {id(p) for p in network.parameters()} == parameters
    ours = cnn(3)
    assert adapt(ours) is ours

    class Doubled(Theirs):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            z = super().forward(x)
            return torch.cat([z, z], 1)

    with pytest.raises(ValueError, match="the classifier is not its last step"):
        adapt(Doubled(), "fc").forward_features(torch.randn(4, 3, 4))


def test_models_by_name() -> None:
    built = load_model("spcp.networks:cnn", 5, (1, 12, 12))
    assert (built.num_classes, built.num_features) == (5, 128)
    for name, message in (
        ("spcp.networks:nothing", "cannot be called"),
        ("spcp.networks:adapt", "write a function that needs `num_classes` or nothing"),
        ("os:getcwd", "returns a str, not a model"),
        ("spcp.networks:resnet18", r"cannot be run on samples \(1, 12, 12\)"),
    ):
        with pytest.raises(InputError, match=message):
            load_model(name, 5, (1, 12, 12))


@pytest.mark.parametrize("name", [name for name in SMALL if name != "mlp"])
def test_channels_last_changes_nothing(name: str) -> None:
    build, shape, _ = SMALL[name]
    network, x = build().eval(), torch.randn(2, *shape)
    expected = network(x)
    network = network.to(memory_format=torch.channels_last)
    torch.testing.assert_close(network(x.contiguous(memory_format=torch.channels_last)), expected, atol=1e-4, rtol=1e-4)


def test_patches_of_the_training_images_are_whitened() -> None:
    mixing = torch.eye(3) + 0.4 * torch.randn(3, 3)
    x = torch.einsum("cd,bdhw->bchw", mixing, torch.randn(64, 3, 32, 32))  # channels that correlate
    network = whitened_cnn(10, width=8)
    network.begin([(x[:40], torch.zeros(40)), (x[40:], torch.zeros(24))])
    out = nn.functional.conv2d(x, network.whitening, stride=2)
    half = out.shape[1] // 2
    assert torch.equal(out[:, :half], -out[:, half:])
    rows = out[:, :half].transpose(0, 1).flatten(1)
    torch.testing.assert_close(rows @ rows.T / rows.shape[1], torch.eye(half), atol=0.05, rtol=0)
    assert not network.whitening.requires_grad
