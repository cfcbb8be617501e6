"""Detectors in the format of the Hugging Face hub: a folder with the weights, a config and a model card."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from torch import nn

from .. import __version__
from ..calibration import load_detector
from ..detector import Detector
from ..errors import InputError, need
from ..files import written
from ..scores import name_of
from ..tables import to_markdown

DETECTOR = "detector.safetensors"
CONFIG = "config.json"
CARD = "README.md"


def save_pretrained(detector: Detector, folder: str | Path, *, license: str | None = None, about: str = "") -> Path:
    """Save a calibrated detector as a repository of the hub; `hf upload NAME FOLDER` publishes it.

    Args:
        detector: a calibrated one. One of `load_detector` or of a run names its network, so that it can be loaded
            without one.
        folder: made if needed; files of an earlier detector in it are replaced.
        license: of the weights, as the hub names it, such as "apache-2.0".
        about: what to say about the network and its data, in Markdown.
    """
    if detector.alpha is None:
        raise InputError("the detector has no threshold yet; call calibrate with ID samples first")
    folder = Path(folder).expanduser()
    detector.save(folder / DETECTOR)
    config = {"library_name": "spcp", "spcp_version": __version__, "detector": DETECTOR, "alpha": detector.alpha}
    config |= {"score": name_of(detector.score), "num_classes": detector.model.num_classes}
    for name, text in ((CONFIG, json.dumps(config, indent=2) + "\n"), (CARD, _card(detector, license, about))):
        with written(folder / name) as file:
            file.write(text.encode())
    return folder


def from_pretrained(source: str | Path, network: nn.Module | None = None, *, revision: str | None = None) -> Detector:
    """Load a detector from a folder of `save_pretrained`, or by its name on the hub.

    Args:
        source: the folder, or the name, which is fetched or taken from the hub's cache.
        network: built anew, with any weights, where the detector does not name its network.
        revision: of the repository: a branch, a tag or a commit.
    """
    path = Path(source).expanduser()
    if not path.is_dir():
        hub = need("huggingface_hub", "huggingface-hub", "pretrained")
        try:
            path = Path(hub.snapshot_download(str(source), revision=revision, allow_patterns=[DETECTOR, CONFIG]))
        except Exception as error:  # of the network, of the name, of access: one sentence for all
            raise InputError(f"{source}: neither a folder nor a repository that can be fetched ({error})") from error
    if not (path / DETECTOR).is_file():
        raise InputError(f"{source}: holds no {DETECTOR}; name a folder that save_pretrained wrote")
    return load_detector(path / DETECTOR)[0] if network is None else Detector.load(path / DETECTOR, network)


def _card(detector: Detector, license: str | None, about: str) -> str:
    """Return the model card: what the hub reads, then what people do."""
    front = ["library_name: spcp", "tags: [out-of-distribution-detection, ood-detection]"]
    front += [f"license: {license}"] if license else []
    guarantee = f"{100 * (detector.alpha or 0):g} % of in-distribution inputs"
    if detector.delta is not None:
        guarantee += f" (with probability {1 - detector.delta:g} over the calibration data)"
    lines = [
        *("---", *front, "---", "# Out-of-distribution detector", ""),
        f"A classifier of {detector.model.num_classes} classes that flags inputs unlike its training data: at most "
        f"{guarantee} are flagged, calibrated on {len(detector.calibration_scores)} samples. Score: "
        f"`{name_of(detector.score)}`.",
        *("", about, ""),
        *("```python", "from spcp.integrations.hub import from_pretrained", ""),
        *('detector = from_pretrained("THIS")  # (..., network) where it does not name its network', ""),
        *("detection = detector.detect(x)", "```", ""),
    ]
    rates: list[dict[str, Any]] = detector.notes.get("rates", [])
    if rates:
        rows = [[row["dataset"], str(row["samples"]), f"{100 * row['flagged']:.1f} %"] for row in rates]
        lines.append(to_markdown(["data", "samples", "flagged"], rows))
    return "\n".join(lines)
