"""The options of a training, which `spcp train` and `spcp tune` share, and the calibration that follows one."""

from __future__ import annotations

import math
import sys
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from ..errors import InputError
from ..progress import printable
from .options import data_option, key_values, method_option, training_option
from .output import note
from .user_data import DESCRIPTION, DataOptions

if TYPE_CHECKING:
    from ..config import Config
    from ..data import Benchmark
    from ..detector import Detector
    from ..runs import Run

NETWORKS = "cnn, resnet18, wideresnet28, audio_cnn, mlp, ...; trained already: timm:NAME, hf:NAME, torchvision:NAME."


@dataclass(frozen=True)
class TrainingOptions:
    """What is trained, and how."""

    flip: Annotated[bool, data_option("Mirror images in training; not for text or signs.", "--flip/--no-flip")] = True
    method: Annotated[str, method_option("See `spcp methods`.", "--method", "-m")] = "spcp"
    option: Annotated[list[str], method_option("Option of the method or of SPCP, KEY=VALUE; may be repeated.")] = field(
        default_factory=list
    )
    network: Annotated[str | None, method_option(NETWORKS, "--network", "-n")] = None
    width: Annotated[int | None, method_option("Width of the network; default: the network's.")] = None
    model: Annotated[str | None, method_option("Your model instead: package.module:function, which builds it.")] = None
    weights: Annotated[Path | None, method_option("Weights to start from: safetensors, or a run.")] = None
    epochs: Annotated[int | None, training_option("Passes over the training data.")] = None
    batch_size: Annotated[int | None, training_option("Samples in a step.")] = None
    lr: Annotated[float | None, training_option("Learning rate.")] = None
    precision: Annotated[str | None, training_option("32-true, bf16-mixed or 16-mixed; default: 32-true.")] = None

    def config(self, data: DataOptions, folder: Path, **changes: Any) -> Config:
        """Return the settings of a run: the paper's for the benchmark, except what was given."""
        from ..config import config_for
        from ..contributions import Truncation

        if self.model and self.network:
            raise InputError("--model and --network: give one of them")
        given = key_values(self.option)
        changes |= {field.name: given.pop(field.name) for field in fields(Truncation) if field.name in given}
        changes |= {key: getattr(self, key) for key in ("width", "epochs", "batch_size", "lr", "precision")}
        changes |= {"network": self.model or self.network, "options": given}
        changes["root"] = None if data.root is None else str(data.root)
        changes["start"] = None if self.weights is None else str(self.weights.expanduser().resolve())
        changes = {key: value for key, value in changes.items() if value is not None}
        config = config_for(data.source(folder), self.method, **changes)
        return replace(config, benchmark=DESCRIPTION) if data.id_ else config


def warn_of_too_few(benchmark: Benchmark | None, alpha: float) -> None:
    """Say before anything is trained that there is too little validation data for a threshold."""
    from ..conformal import samples_needed

    if benchmark is None:
        return
    parts = [0 if part is None else len(part) for part in (benchmark.train, benchmark.val, benchmark.test)]
    count, needed = parts[1], samples_needed(alpha) + 2  # the default score is fitted on two of them, at least
    if count >= needed:
        return
    share = math.ceil(20 * 1.1 * needed / sum(parts)) / 20  # some more, since every class is rounded
    split = f", give --split {1 - 2 * share:.2g},{share:g},{share:g}" if share <= 0.3 else ""
    larger = f", or take --alpha {math.ceil(100 / (count - 1)) / 100:g}" if count >= 6 else ""
    print(
        f"spcp: this run will have no threshold: it has {count} validation samples, and alpha = {alpha:g} needs "
        f"{needed}, {needed - count} more; add samples{split}{larger}",
        file=sys.stderr,
    )


def calibrate_if_possible(
    run: Run, alpha: float, score: str | None = None, *, benchmark: Benchmark | None = None
) -> None:
    """Leave a calibrated detector in the folder of a run, if there is enough validation data, and tell about it.

    The benchmark is the run's, if it was read already: what is wrong with its files is said once.
    """
    from ..calibration import calibrate_run
    from ..training import warn_of_guessing

    try:
        detector, evaluation = calibrate_run(run, score, alpha=alpha, benchmark=benchmark)
    except InputError as error:
        print(printable(f"spcp: not calibrated: {error}"), file=sys.stderr)
        return
    if not run.history:  # it was adopted; training has said it
        bank = evaluation.bank("val")
        note(f"accuracy {100 * bank.accuracy():.1f} % on {len(bank)} validation samples")
        warn_of_guessing(bank.accuracy(), bank.labels)
    note_detector(run, detector)


def note_detector(run: Run, detector: Detector) -> None:
    """Say what the detector of a run is, and how to use it."""
    from ..choice import problem, trials_from_json

    note_choice(detector)
    note(f"calibrated on {len(detector.calibration_scores)} validation samples: {run.detector_path}")
    if not problem(trials_from_json(detector.notes["trials"]), detector.alpha or 0.0):
        note(f"try: spcp detect FILES... --run {run.folder}{model_option(run.config)}")


def note_choice(detector: Detector) -> None:
    """Say which score a detector has and why, and what it flags of the outliers it was tried on."""
    from ..choice import Choice, trials_from_json

    choice, trials = Choice.from_json(detector.notes["choice"]), trials_from_json(detector.notes["trials"])
    members = f" ({', '.join(detector.score.options['members'])})" if "members" in detector.score.options else ""
    note(f"score: {choice.score}{members}; {choice.reason}")
    if choice.candidates:
        note(choice.table().rstrip())
    for given, what in ((True, "OOD validation data"), (False, "outliers made of ID samples")):
        rates = [f"{t.dataset.split('/', 1)[1]} {100 * t.detection_rate:.1f} %" for t in trials if t.given is given]
        if rates:
            note(f"flagged of {what} at alpha = {detector.alpha:g}: {', '.join(rates)}")


def model_option(config: Config) -> str:
    """Return the option that other commands need for a run, if its network is code."""
    from ..networks import is_code

    return f" --model {config.network}" if is_code(config.network) else ""
