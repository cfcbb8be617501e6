"""Networks of other libraries by name, trained already: "timm:resnet18.a1_in1k", "hf:google/vit-base-patch16-224".

These are classes of libraries that are installed, so to build one asks for no trust: no code comes out of a file. The
weights come from the library's own cache, which the library fills where there is a connection. A run holds all that
its network needs to be built again without either.
"""

from __future__ import annotations

import contextlib
import difflib
import importlib
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

import torch
from torch import nn

from ..contributions import Truncation, apply_spcp
from ..errors import InputError
from ..files import read_tensors
from .adapted import adapt
from .weights import put_weights

Weights = Literal["none", "body", "all"]

_PACKAGES = {"timm": "timm", "hf": "transformers", "torchvision": "torchvision"}
# What a config of Hugging Face holds besides the architecture; some of it would fetch code, or what others have fitted.
_NOT_BUILT = {"auto_map", "attn_implementation", "experts_implementation", "quantization_config", "dtype"}
_NOT_BUILT |= {"torch_dtype", "id2label", "label2id", "num_labels", "architectures", "transformers_version", "spcp"}


def is_pretrained(name: str) -> bool:
    """Tell whether a name is that of another library's network: "timm:...", "hf:..." or "torchvision:...".

    >>> is_pretrained("timm:resnet18.a1_in1k"), is_pretrained("resnet18"), is_pretrained("mypackage.models:build")
    (True, False, False)
    """
    return name.partition(":")[0] in _PACKAGES and ":" in name


def preprocessing_of(name: str) -> dict[str, Any]:
    """Return how a network expects its images, as fields of `spcp.data.ImageTransform`.

    That is timm's data config, the transforms of torchvision's weights, or Hugging Face's image processor.
    """
    library, model = _parts(name)
    if library == "timm":
        timm = _library("timm.data")
        config = timm.resolve_data_config({}, pretrained_cfg=_library("timm").get_pretrained_cfg(model).to_dict())
        size, squash = config["input_size"][-1], config["crop_mode"] == "squash"
        options = {"resize": math.floor(size / config["crop_pct"]), "crop": size, "squash": squash}
        return options | {key: config[key] for key in ("mean", "std", "interpolation")}
    if library == "torchvision":
        preset: Any = _library("torchvision.models").get_model_weights(model).DEFAULT.transforms()
        options = {"resize": preset.resize_size[0], "crop": preset.crop_size[0], "squash": False}
        mean, std = (tuple(map(float, values)) for values in (preset.mean, preset.std))
        return options | {"mean": mean, "std": std, "interpolation": preset.interpolation.value}
    transformers = _library("transformers")
    with _silent(transformers), _found(name):
        return _of_processor(name, transformers.AutoImageProcessor.from_pretrained(model).to_dict())


def _of_processor(name: str, config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a transform for the settings of an image processor of Hugging Face."""
    size, crop = config.get("size") or {}, config.get("crop_size") or {}
    squash, resize = "height" in size, size.get("height", size.get("shortest_edge"))
    side = crop.get("height") if config.get("do_center_crop") else resize
    if config.get("crop_pct") and resize:  # ConvNeXt's
        side, squash = resize, resize >= 384
        resize = resize if squash else int(resize / config["crop_pct"])
    square = all(lengths.get("height") == lengths.get("width") for lengths in (size, crop))
    if not (config.get("do_resize", True) and resize and side and square):
        raise InputError(f"{name}: its image processor does not resize images to a square; choose another network")
    scale = 255 * config.get("rescale_factor", 1 / 255) if config.get("do_rescale", True) else 255
    normalise = config.get("do_normalize", True)
    mean, std = (config["image_mean"], config["image_std"]) if normalise else ([0.0] * 3, [1.0] * 3)
    kinds = {0: "nearest", 1: "lanczos", 2: "bilinear", 3: "bicubic"}  # Pillow's numbers
    return {
        "resize": resize,
        "crop": side,
        "mean": tuple(value / scale for value in mean),
        "std": tuple(value / scale for value in std),
        "interpolation": kinds.get(config.get("resample", 2), "bilinear"),
        "squash": squash,
    }


def architecture_of(name: str) -> dict[str, Any] | None:
    """Return what the layers of a network of Hugging Face follow from; None for others, whose name says it."""
    library, model = _parts(name)
    if library != "hf":
        return None
    transformers = _library("transformers")
    with _silent(transformers), _found(name):
        config: dict[str, Any] = transformers.AutoConfig.from_pretrained(model).to_dict()
    return _layers(config)


def _layers(config: Any) -> Any:
    """Return the part of a config that describes layers. A config may come from somebody else's file."""
    if isinstance(config, Mapping):
        if str(config.get("model_type")).startswith("timm"):
            raise InputError('a model of timm within one of Hugging Face is not supported; name it as "timm:NAME"')
        kept = {key: value for key, value in config.items() if key not in _NOT_BUILT and not key.startswith("_")}
        return {key: _layers(value) for key, value in kept.items()}
    return list(map(_layers, config)) if isinstance(config, list | tuple) else config


def build_pretrained(
    name: str, num_classes: int, *, architecture: Mapping[str, Any] | None = None, weights: Weights = "none"
) -> nn.Module:
    """Build a network of another library.

    Args:
        name: "timm:...", "torchvision:...", or "hf:..." with a name on Hugging Face or a folder of `save_pretrained`.
        num_classes: K, for a new classifier.
        architecture: what `architecture_of` returned, so that nothing has to be read for a network of Hugging Face.
        weights: "none" leaves them random, for those of a run; "body" is for training: all but the classifier's;
            "all" keeps the network's own classifier, too, whatever K is.
    """
    library, model = _parts(name)
    if library == "hf":
        return _hugging_face(name, model, num_classes, architecture, weights)
    classes = {} if weights == "all" else {"num_classes": num_classes}
    if library == "timm":
        with _found(name, weights):
            built: nn.Module = _library("timm").create_model(model, pretrained=weights != "none", **classes)
        return built
    models = _library("torchvision.models")
    network = adapt(models.get_model(model, **classes))
    if weights != "none":
        with _found(name, weights):
            state = models.get_model_weights(model).DEFAULT.get_state_dict(progress=False, weights_only=True)
        put_weights(network, state, name, new_classifier=weights == "body")
    return network


def _hugging_face(
    name: str, model: str, num_classes: int, architecture: Mapping[str, Any] | None, weights: Weights
) -> nn.Module:
    transformers = _library("transformers")
    kind = transformers.AutoModelForImageClassification
    if weights == "all":
        with _found(name, weights):
            return from_pretrained(kind, model)
    with _silent(transformers):
        if weights == "body":
            with _found(name, weights):
                return kind.from_pretrained(
                    model, num_labels=num_classes, ignore_mismatched_sizes=True, use_safetensors=True
                )
        layers = _layers(architecture or architecture_of(name))
        try:
            return kind.from_config(transformers.AutoConfig.for_model(**layers, num_labels=num_classes))
        except (ImportError, TypeError, ValueError, KeyError, AttributeError) as error:
            raise InputError(f"{name}: cannot be built ({error}); check that transformers is not too old") from error


def from_pretrained(kind: Any, path: str, **options: Any) -> Any:
    """Load a model of Hugging Face as `kind.from_pretrained(path)` does, with its SPCP head if it was saved with one.

    `save_pretrained` keeps the threshold and the hyperparameters of the head, but `from_pretrained` of the library
    builds a plain layer. A model that was saved without a head is loaded as it is.

    Args:
        kind: the class, such as `ViTForImageClassification` or `AutoModelForImageClassification`.
        path: the folder that `save_pretrained` or the Trainer wrote, or a name on Hugging Face.
        options: other arguments of `from_pretrained`.
    """
    transformers = _library("transformers")
    with _silent(transformers):  # which would call the threshold unexpected
        model, report = kind.from_pretrained(path, output_loading_info=True, use_safetensors=True, **options)
    about = getattr(model.config, "spcp", None)
    if report["missing_keys"]:
        missing = sorted(report["missing_keys"])[0]
        raise InputError(f"{path}: lacks weights of {type(model).__name__}, such as {missing}; name the class it is of")
    if about is None:
        return model
    classifier, truncation = about["classifier"], Truncation(**about["truncation"])
    apply_spcp(model, classifier=classifier, **vars(truncation))
    head = model.get_submodule(classifier)
    tensors = _saved(transformers, path, f"{classifier}.")
    if "threshold" not in tensors:
        raise InputError(f"{path}: its config names an SPCP head, but its weights hold no threshold; save it again")
    head.load_state_dict(head.state_dict() | tensors)
    return model


def _saved(transformers: Any, path: str, prefix: str) -> dict[str, torch.Tensor]:
    """Return the tensors below a prefix, without it, of a model's file or files."""
    hub = importlib.import_module("transformers.utils.hub")
    single = hub.cached_file(path, "model.safetensors", _raise_exceptions_for_missing_entries=False)
    if single is None:
        index = hub.cached_file(path, "model.safetensors.index.json")
        files, _ = hub.get_checkpoint_shard_files(path, index)
    else:
        files = [single]
    tensors = {key: value for file in files for key, value in read_tensors(Path(file))[0].items()}
    return {key.removeprefix(prefix): value for key, value in tensors.items() if key.startswith(prefix)}


def _parts(name: str) -> tuple[str, str]:
    """Return the library and the model that a name means; a model that the library does not have is an error."""
    library, _, model = name.partition(":")
    if library == "timm":
        timm = _library("timm")
        known = timm.is_model(model) and "/" not in model and ":" not in model
        names = [] if known else timm.list_models() + timm.list_pretrained()
    elif library == "torchvision":
        models = _library("torchvision.models")
        names = models.list_models(module=models)
        known = model in names
    else:
        known, names = bool(model), []
    if not known:
        close = difflib.get_close_matches(model, names, 3) or ["none is like it"]
        raise InputError(f"{name}: {_PACKAGES[library]} has no model {model!r}; there are: {', '.join(close)}")
    return library, model


def _library(module: str) -> Any:
    """Import a library, or say what to install."""
    package = module.partition(".")[0]
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise InputError(f"this needs {package}: pip install 'spcp[pretrained]' ({error})") from error
    except RuntimeError as error:  # a torchvision that was built for another torch
        index = "" if torch.version.cuda else " --index-url https://download.pytorch.org/whl/cpu"
        raise InputError(
            f"{package} cannot be imported beside torch {torch.__version__} ({error}); install the build of "
            f"torchvision for it: pip install --force-reinstall --no-deps torchvision{index}"
        ) from error


@contextlib.contextmanager
def _found(name: str, weights: Weights = "body") -> Iterator[None]:
    """Turn whatever a library raises for what it cannot find or fetch into a sentence."""
    if weights == "none":
        yield
        return
    try:
        yield
    except InputError:
        raise
    except Exception as error:
        reason = str(error).strip().split("\n")[0] or type(error).__name__
        library, _, model = name.partition(":")
        if isinstance(error, ImportError):  # of what the library imports when it needs it
            _library("torchvision")
            cure = "pip install 'spcp[pretrained]'"
            raise InputError(f"{name}: {_PACKAGES[library]} lacks something ({reason}); {cure}") from error
        if library == "hf" and Path(model).is_dir():
            cure = "name a folder that save_pretrained has filled"
            raise InputError(f"{name}: cannot be read ({reason}); {cure}") from error
        cure = "give a file of its weights (--weights FILE.safetensors)"
        if library == "hf":
            cure = f"name a folder that save_pretrained or `hf download {model}` has filled: hf:FOLDER"
        raise InputError(
            f"{name}: is not in the cache of {_PACKAGES[library]}, and cannot be fetched ({reason}); connect once, or "
            f"{cure}"
        ) from error


@contextlib.contextmanager
def _silent(transformers: Any) -> Iterator[None]:
    """Keep transformers from reporting what it loads."""
    logging = transformers.utils.logging
    level, bar = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(level)
        if bar:
            logging.enable_progress_bar()
