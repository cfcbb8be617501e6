"""Weights are loaded by what the model has, whatever its layers are called."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from others import imported
from torch import nn

from spcp import apply_spcp
from spcp.errors import InputError
from spcp.files import write_tensors
from spcp.networks import adapt, cnn
from spcp.networks.adapted import logits_of
from spcp.runs import load_weights

pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore:The SPCP threshold is still:UserWarning"),
]


class Own(nn.Module):
    """A net whose attributes are called as a run's are."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(3, width, 3, stride=4), nn.BatchNorm2d(width), nn.ReLU())
        self.method = nn.Conv2d(width, 4, 1)
        self.classifier = nn.Sequential(nn.Flatten(), nn.LazyLinear(6), nn.ReLU(), nn.Linear(6, 5))
        self.classifier(self.method(self.body(torch.zeros(2, 3, 64, 64))))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.classifier(self.method(self.body(x)))


def transformer() -> nn.Module:
    transformers = imported("transformers")
    small = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 64}
    return transformers.ViTForImageClassification(transformers.ViTConfig(**small, image_size=64, num_labels=5))


def residual() -> nn.Module:
    transformers = imported("transformers")
    sizes: Any = {"embedding_size": 8, "hidden_sizes": [8, 16], "depths": [1, 1]}
    return transformers.ResNetForImageClassification(transformers.ResNetConfig(**sizes, num_labels=5))


MODELS: dict[str, Callable[[], nn.Module]] = {
    "own": Own,
    "Hugging Face ViT": transformer,
    "Hugging Face ResNet": residual,
    "torchvision MobileNetV3": lambda: imported("torchvision.models").mobilenet_v3_small(num_classes=5),
    "timm EfficientNet": lambda: imported("timm").create_model("efficientnet_b0", num_classes=5),
    "one layer": lambda: nn.Sequential(nn.Flatten(), nn.Linear(3 * 64 * 64, 5)),
}


@pytest.mark.parametrize("prefix", ["", "module.", "_orig_mod.model."])
@pytest.mark.parametrize("name", MODELS)
def test_weights_of_any_model(library: torch.library.Library, name: str, prefix: str, tmp_path: Path) -> None:
    trained, x = MODELS[name]().eval(), torch.randn(2, 3, 64, 64)
    file = tmp_path / "weights.safetensors"
    write_tensors(file, {prefix + key: value for key, value in trained.state_dict().items()})
    network = adapt(MODELS[name]()).eval()
    assert not torch.equal(logits_of(network, x), logits_of(trained, x))
    load_weights(network, file)
    assert torch.equal(logits_of(network, x), logits_of(trained, x))
    again = adapt(MODELS[name]()).eval()
    write_tensors(file, {prefix + key: value for key, value in network.state_dict().items()})  # under a run's names
    load_weights(again, file)
    assert torch.equal(logits_of(again, x), logits_of(trained, x))


@pytest.mark.parametrize("build", [Own, lambda: cnn(5, channels=3, width=4)])
def test_weights_bring_the_threshold_along(build: Callable[[], nn.Module], tmp_path: Path) -> None:
    trained = apply_spcp(build(), rho_norm=0.3)
    (head,) = (module for module in trained.modules() if hasattr(module, "threshold"))
    head.threshold.fill_(0.25)
    write_tensors(tmp_path / "weights.safetensors", trained.state_dict())
    network: Any = adapt(build())
    load_weights(network, tmp_path / "weights.safetensors")
    assert (network.classifier.threshold.item(), network.classifier.truncation.rho_norm) == (0.25, 0.3)


def test_weights_of_another_network_are_refused_by_name(tmp_path: Path) -> None:
    file = tmp_path / "weights.safetensors"
    write_tensors(file, Own(width=9).state_dict())
    with pytest.raises(InputError, match=r"\(body\.0\.bias is \(9,\), not \(8,\)\)"):
        load_weights(adapt(Own()), file)
    state = Own().state_dict()
    write_tensors(file, {key: value for key, value in state.items() if key != "classifier.1.bias"})
    with pytest.raises(InputError, match=r"\(classifier\.1\.bias is missing\)"):
        load_weights(adapt(Own()), file)
    write_tensors(file, state | {"extra.weight": torch.zeros(1)})
    with pytest.raises(InputError, match=r"\(the network has no extra\.weight\)"):
        load_weights(adapt(Own()), file)


def test_a_classifier_for_other_classes(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Training makes a new one; where the network is used as it is, it is an error."""
    trained = Own()
    trained.classifier[3] = nn.Linear(6, 11)
    write_tensors(tmp_path / "weights.safetensors", trained.state_dict())
    network = adapt(Own())
    kept = network.classifier.weight.clone()
    with pytest.raises(InputError, match=r"classifier\.3\.bias is \(11,\), not \(5,\)"):
        load_weights(network, tmp_path / "weights.safetensors")
    load_weights(network, tmp_path / "weights.safetensors", new_classifier=True)
    assert torch.equal(network.classifier.weight, kept)
    assert torch.equal(network.state_dict()["body.body.0.weight"], trained.body[0].weight)
    assert "is for other classes; a new one is trained for 5" in caplog.text
