"""Networks of timm, torchvision and Hugging Face by name, without a connection: weights lie in their caches."""

from __future__ import annotations

import importlib
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from others import imported
from safetensors.torch import save_file

from spcp import Detector, Run, SPCPLinear, data
from spcp.config import Config, build_network, config_for
from spcp.errors import InputError
from spcp.networks import architecture_of, build_pretrained, from_pretrained, preprocessing_of
from spcp.networks.adapted import logits_of

from . import Spcp

pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore:.*SPCP.*:UserWarning"),
    pytest.mark.usefixtures("offline"),
]

TIMM, TORCHVISION = "timm:test_resnet.r160_in1k", "torchvision:shufflenet_v2_x0_5"
SMALL: Any = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}


@pytest.fixture
def offline(library: torch.library.Library, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Leave nothing in the caches, and no connection to fill them."""
    for name in ("timm", "torchvision", "transformers"):
        imported(name)
    monkeypatch.setenv("TORCH_HOME", str(tmp_path / "torch"))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr("torch.hub.download_url_to_file", refuse)
    return tmp_path


def refuse(*_: Any, **__: Any) -> None:
    raise OSError("there is no connection")


def in_hub(folder: Path, name: str) -> Path:
    """Make a model's folder in the cache of Hugging Face, and return it."""
    cached = folder / "hub" / f"models--{name.replace('/', '--')}"
    (cached / "refs").mkdir(parents=True)
    (cached / "refs" / "main").write_text("abc")
    (cached / "snapshots" / "abc").mkdir(parents=True)
    return cached / "snapshots" / "abc"


def cache_weights(name: str, folder: Path) -> dict[str, torch.Tensor]:
    """Put a model's weights, drawn at random, where its library looks for them, and return them."""
    library, _, model = name.partition(":")
    if library == "timm":
        state = imported("timm").create_model(model).state_dict()
        save_file(state, in_hub(folder, f"timm/{model}") / "model.safetensors")
    elif library == "torchvision":
        models = imported("torchvision.models")
        state = models.get_model(model).state_dict()
        path = folder / "torch" / "hub" / "checkpoints" / models.get_model_weights(model).DEFAULT.url.split("/")[-1]
        path.parent.mkdir(parents=True)
        torch.save(state, path)
    else:
        network = vision_transformer(7)
        network.save_pretrained(in_hub(folder, model))
        processor().save_pretrained(in_hub_again(folder, model))
        state = network.state_dict()
    return state


def in_hub_again(folder: Path, name: str) -> Path:
    return folder / "hub" / f"models--{name.replace('/', '--')}" / "snapshots" / "abc"


def vision_transformer(num_labels: int) -> Any:
    transformers = imported("transformers")
    config = transformers.ViTConfig(**SMALL, image_size=32, patch_size=8, num_labels=num_labels)
    return transformers.ViTForImageClassification(config)


def processor(**options: Any) -> Any:
    settings = {"size": {"height": 32, "width": 32}, "resample": 3, "image_mean": [0.4] * 3} | options
    return imported("transformers").ViTImageProcessor(**settings)


HF = "hf:someone/tiny-vit"


@pytest.mark.parametrize("name", [TIMM, TORCHVISION, HF])
def test_a_pretrained_network_is_fine_tuned_shipped_and_used_without_its_weights(
    run: Spcp, photos: Path, offline: Path, name: str
) -> None:
    """Its features start as they were trained; its images are prepared as they were; and a run is all it takes."""
    state = cache_weights(name, offline)
    folder, given = offline / "run", ["--id", photos / "id", "--out", offline / "run", "--network", name]
    size = [] if name == HF else ["--size", 32]
    result = run("train", *given, *size, "--epochs", 1, "--lr", 1e-12)
    assert result.code == 0, result.err
    wanted = preprocessing_of(name)
    transform = Run.open(folder).inputs.transform
    assert isinstance(transform, data.ImageTransform)
    assert transform.crop == 32
    assert {key: getattr(transform, key) for key in ("mean", "std", "interpolation", "squash")} == {
        key: wanted[key] for key in ("mean", "std", "interpolation", "squash")
    }
    for path in ("hub", "torch"):
        shutil.rmtree(offline / path, ignore_errors=True)  # what follows needs no weights but the run's
    scored = Run.open(folder).load()
    assert scored.num_classes == 2
    assert isinstance(scored.head, SPCPLinear)
    ours = scored.network.body.state_dict()  # type: ignore[union-attr]
    drawn = [key for key, value in ours.items() if value.ndim > 1]
    assert len(drawn) > 5
    for key in drawn:  # an epoch at the smallest learning rate moves them a little
        assert torch.cosine_similarity(ours[key].flatten(), state[key].flatten(), dim=0) > 0.8, key
    rows = run("detect", photos / "ood", "--run", folder).rows()
    shipped = run("detect", photos / "ood", "--run", shutil.copy(folder / "detector.safetensors", offline / "d")).rows()
    assert rows == shipped
    assert len(rows) == 30
    again = Detector.load(offline / "d", build_network(Run.open(folder).config, Run.open(folder).inputs))
    assert again.model.num_classes == 2


@pytest.mark.parametrize("name", [TIMM, TORCHVISION, HF])
def test_a_network_that_is_not_there_says_where_it_must_be(run: Spcp, photos: Path, offline: Path, name: str) -> None:
    result = run("train", "--id", photos / "id", "--network", name, "--out", offline / "run")
    assert result.code == 2
    assert f"{name}: is not in the cache" in result.err
    assert ("name a folder" if name == HF else "--weights FILE.safetensors") in result.err
    assert not (offline / "run").exists()


def test_weights_from_a_file(run: Spcp, photos: Path, offline: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Where the cache is empty, a file will do: its classifier for other classes is left out, and that is said."""
    state = imported("timm").create_model("test_resnet.r160_in1k").state_dict()
    save_file({f"module.{key}": value for key, value in state.items()}, offline / "w.safetensors")
    given = ["--id", photos / "id", "--size", 32, "--weights", offline / "w.safetensors", "--out", offline / "run"]
    result = run("train", *given, "--network", TIMM, "--epochs", 1, "--lr", 1e-12)
    assert result.code == 0, result.err
    assert "its classifier is for other classes; a new one is trained for 2" in caplog.text
    assert "expects images" not in caplog.text
    network: Any = Run.open(offline / "run").load().network
    torch.testing.assert_close(network.body.conv1[0].weight, state["conv1.0.weight"], atol=1e-4, rtol=1e-4)
    again = run("train", *given, "--network", TIMM, "--epochs", 1, "--lr", 1e-12)  # continues, and finds it complete
    assert again.code == 0, again.err


def test_a_fine_tuned_model_is_adopted_with_its_classifier_and_threshold(
    run: Spcp, photos: Path, offline: Path
) -> None:
    """A folder of `save_pretrained`, with the image processor beside it, is all that adopt needs."""
    from spcp import apply_spcp

    trained = apply_spcp(vision_transformer(2), rho_norm=0.3)
    trained.classifier.threshold.fill_(0.02)
    trained.save_pretrained(offline / "mine")
    processor(size={"shortest_edge": 36}, crop_size={"height": 32, "width": 32}, do_center_crop=True).save_pretrained(
        offline / "mine"
    )
    result = run("adopt", f"hf:{offline / 'mine'}", "--id", photos / "id", "--out", offline / "run")
    assert result.code == 0, result.err
    shutil.rmtree(offline / "mine")
    opened = Run.open(offline / "run")
    assert isinstance(opened.inputs.transform, data.ImageTransform)
    assert (opened.inputs.transform.resize, opened.inputs.transform.crop) == (36, 32)
    scored = opened.load()
    assert isinstance(scored.head, SPCPLinear)
    assert scored.head.threshold.item() == pytest.approx(0.02)
    x = torch.randn(3, 3, 32, 32)
    torch.testing.assert_close(logits_of(scored.network, x), logits_of(trained, x))
    three = vision_transformer(3)
    three.save_pretrained(offline / "three")
    processor().save_pretrained(offline / "three")
    wrong = run("adopt", f"hf:{offline / 'three'}", "--id", photos / "id", "--out", offline / "other")
    assert wrong.code == 2
    assert "has 3 outputs, but id has 2 classes" in wrong.err


@pytest.mark.parametrize("kind", ["ViTForImageClassification", "AutoModelForImageClassification"])
@pytest.mark.parametrize("shard", ["5GB", "2KB"])
def test_save_pretrained_keeps_the_threshold(offline: Path, kind: str, shard: str) -> None:
    from spcp import apply_spcp, remove_spcp

    model = apply_spcp(vision_transformer(5), rho_norm=0.7, total_steps=10)
    model.classifier.threshold.fill_(0.03)
    model.classifier.updates.fill_(4)
    model.save_pretrained(offline / "model", max_shard_size=shard)
    again = from_pretrained(getattr(imported("transformers"), kind), str(offline / "model"))
    head = again.classifier
    assert isinstance(head, SPCPLinear)
    assert (head.threshold.item(), head.updates.item()) == (pytest.approx(0.03), 4)
    assert head.truncation == model.classifier.truncation
    x = torch.randn(2, 3, 32, 32)
    assert torch.equal(logits_of(again, x), logits_of(model, x))
    remove_spcp(model).save_pretrained(offline / "plain")
    plain = from_pretrained(getattr(imported("transformers"), kind), str(offline / "plain"))
    assert type(plain.classifier) is torch.nn.Linear


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, {"resize": 32, "crop": 32, "squash": True, "interpolation": "bicubic", "mean": (0.4,) * 3}),
        ({"do_normalize": False}, {"mean": (0.0,) * 3, "std": (1.0,) * 3}),
        ({"rescale_factor": 1 / 127.5}, {"mean": (0.2,) * 3, "std": (0.25,) * 3}),
        ({"size": {"height": 30, "width": 40}}, "does not resize images to a square"),
    ],
)
def test_image_processors(offline: Path, options: dict[str, Any], expected: Any) -> None:
    vision_transformer(2).save_pretrained(offline / "model")
    processor(**options).save_pretrained(offline / "model")
    if isinstance(expected, str):
        with pytest.raises(InputError, match=expected):
            preprocessing_of(f"hf:{offline / 'model'}")
        return
    found = preprocessing_of(f"hf:{offline / 'model'}")
    assert {key: found[key] for key in expected} == {
        key: pytest.approx(value) if isinstance(value, tuple) else value for key, value in expected.items()
    }


def test_images_are_prepared_as_the_library_does(offline: Path, photos: Path) -> None:
    """The processor of Hugging Face, and timm's and torchvision's transforms, on a photograph that is not square."""
    from spcp.data.embedded import photograph_files

    image = data.images.open_image(photograph_files()[0]).crop((0, 0, 300, 200))
    vision_transformer(2).save_pretrained(offline / "model")
    processor().save_pretrained(offline / "model")
    timm, transforms = imported("timm.data"), imported("torchvision.models").get_model_weights("shufflenet_v2_x0_5")
    config = timm.resolve_data_config({}, pretrained_cfg=imported("timm").get_pretrained_cfg(TIMM[5:]).to_dict())
    theirs = {
        f"hf:{offline / 'model'}": processor()(image, return_tensors="pt")["pixel_values"][0],
        TIMM: timm.create_transform(**config)(image),
        TORCHVISION: transforms.DEFAULT.transforms()(image),
    }
    for name, expected in theirs.items():
        ((x, _),) = data.Loader([image], data.ImageTransform(**preprocessing_of(name)), workers=0)
        assert x.shape[1:] == expected.shape, name
        torch.testing.assert_close(x[0], expected, atol=0.03, rtol=0)  # bytes are rounded at other moments


def test_a_config_cannot_fetch_anything(offline: Path) -> None:
    """What a run's file says of an architecture is layers alone."""
    vision_transformer(2).save_pretrained(offline / "model")
    layers = architecture_of(f"hf:{offline / 'model'}")
    assert layers is not None
    assert layers["hidden_size"] == 16
    evil = {"attn_implementation": "someone/kernels", "_attn_implementation": "someone/kernels"}
    evil |= {"auto_map": {"AutoModelForImageClassification": "someone/code--model.Model"}}
    built = build_pretrained("hf:someone/unknown", 3, architecture=layers | evil)
    assert built.config._attn_implementation in ("sdpa", "eager")  # type: ignore[union-attr]
    assert type(built).__module__.startswith("transformers.models.vit")
    for model_type in ("timm_wrapper", "nothing"):
        with pytest.raises(InputError):
            build_pretrained("hf:x", 3, architecture={"model_type": model_type, "architecture": "hf_hub:someone/x"})
    for name in ("timm:hf_hub:someone/x", "timm:nothing", "timm:resnet19", "torchvision:fasterrcnn_resnet50_fpn"):
        with pytest.raises(InputError, match="has no model"):
            build_pretrained(name, 3)


def test_images_that_are_prepared_otherwise(
    run: Spcp, photos: Path, offline: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A description of data may have its own transform; that it is not the network's is said."""
    cache_weights(HF, offline)
    (offline / "photos.toml").write_text(f'[id]\npath = "{photos / "id"}"\n[transform]\nsize = 32\n')
    result = run("train", "-b", offline / "photos.toml", "--network", HF, "--epochs", 1, "--out", offline / "run")
    assert result.code == 0, result.err
    assert "expects images with mean = [0.4, 0.4, 0.4], std = [0.5, 0.5, 0.5], " in caplog.text
    assert 'interpolation = "bicubic", squash = true; write' in caplog.text


def test_settings(offline: Path) -> None:
    cache_weights(HF, offline)
    config = config_for("digits", network=HF)
    assert config.architecture is not None
    assert Config.from_json(json.loads(json.dumps(config.as_json()))) == config
    assert config_for("digits", network=TIMM, lr=0.5).lr == 0.5
    assert config_for("digits", network=TIMM).epochs < config_for("digits").epochs


def test_a_library_that_cannot_be_imported_is_named(
    run: Spcp, photos: Path, offline: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not the cache: a torchvision for another torch fails on import, and what imports it fails, too."""
    real = importlib.import_module

    def broken(name: str, *rest: Any) -> Any:
        if name.partition(".")[0] == "torchvision":
            raise RuntimeError("operator torchvision::nms does not exist")
        return real(name, *rest)

    def lacking(*_: Any, **__: Any) -> None:
        raise ImportError("Could not import module 'AutoImageProcessor'.")

    folder = offline / "vit"
    folder.mkdir()
    given = ["--id", photos / "id", "--out", offline / "run"]
    monkeypatch.setattr(imported("transformers").AutoImageProcessor, "from_pretrained", lacking)
    assert "'AutoImageProcessor'.); pip install 'spcp[pretrained]'" in run("adopt", f"hf:{folder}", *given).err
    monkeypatch.setattr(importlib, "import_module", broken)
    for command in (["adopt", f"hf:{folder}"], ["train", "--network", TORCHVISION]):
        result = run(*command, *given)
        assert result.code == 2
        assert "torchvision::nms does not exist); install the build of torchvision for it: pip install" in result.err
        assert "cache" not in result.err


def test_a_folder_that_holds_no_model_is_no_matter_of_the_cache(run: Spcp, photos: Path, offline: Path) -> None:
    (offline / "empty").mkdir()
    result = run("adopt", f"hf:{offline / 'empty'}", "--id", photos / "id", "--out", offline / "run")
    assert (result.code, "cache" in result.err) == (2, False)
    assert "empty: cannot be read (" in result.err
