from __future__ import annotations

from pathlib import Path

import pytest
import training_run

from spcp import Run, Truncation, tune
from spcp.errors import InputError
from spcp.tuning import run_folder, with_rho_norm

pytestmark = pytest.mark.filterwarnings("ignore:.*SPCP.*:UserWarning", "ignore::DeprecationWarning")


def test_the_best_value_on_validation_data_is_chosen(tmp_path: Path) -> None:
    corners = training_run.benchmark(48)
    config = training_run.config("spcp", 1)
    tuning = tune(config, tmp_path, grid=(0.0, 0.5, 2.0, 5.0), seeds=(0, 1), benchmark=corners)
    assert [(row["rho_norm"], row["seed"]) for row in tuning.rows] == [(r, s) for r in (0.0, 0.5, 2.0) for s in (0, 1)]
    assert all(0 <= row["auroc"] <= 1 and 0 <= row["accuracy"] <= 1 for row in tuning.rows)
    means = {value: tuning.over_seeds(value)[0] for value in (0.0, 0.5, 2.0)}
    assert means[tuning.best] == max(means.values())
    assert (tuning.score, tuning.ood) == ("energy", "ood_val/noise")
    plain, spcp = (Run.open(run_folder(tmp_path, value, 1)).config for value in (0.0, 0.5))
    assert (plain.method, plain.truncation) == ("plain", Truncation())
    assert (spcp.method, spcp.truncation, spcp.seed) == ("spcp", Truncation(0.5), 1)


def test_what_cannot_be_tuned(tmp_path: Path) -> None:
    corners = training_run.benchmark(48)
    for method, message in (("plain", "plain: has no rho_norm to tune"), ("snn", "snn: .* leave out rho_norm")):
        with pytest.raises(InputError, match=message):
            tune(training_run.config(method, 1), tmp_path / "runs", benchmark=corners)
    with pytest.raises(InputError, match="there is no value of rho_norm from 0 to 4"):
        tune(training_run.config("spcp", 1), tmp_path / "runs", grid=(7.0,), benchmark=corners)
    assert not (tmp_path / "runs").exists()  # nothing was trained
    assert with_rho_norm(training_run.config("logitnorm", 1), 0.5, 2).truncation == Truncation(0.5)
