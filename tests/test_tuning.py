from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest
import torch
import training_run

from spcp import Run, Truncation, tune
from spcp.calibration import calibrate_run
from spcp.conformal import split, threshold_rank
from spcp.data import as_ood, take
from spcp.errors import InputError
from spcp.evaluation import Evaluation
from spcp.metrics import metrics
from spcp.scores import build_score
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


def test_the_plain_network_tells_what_to_expect(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    corners = training_run.benchmark(48)
    tuning = tune(training_run.config("spcp", 1), tmp_path, grid=(0.0, 0.5), benchmark=corners)
    told, (chosen_on, _) = tuning.outlook, split(40)
    assert told is not None
    evaluation = Evaluation(Run.open(run_folder(tmp_path, 0.0, 0)), corners).with_val(chosen_on)
    h, other = (evaluation.bank(role).features.double() for role in ("val", "ood_val/noise"))
    W, b = (parameter.detach().double() for parameter in evaluation.model.head.parameters())
    c = torch.einsum("nd,kd->nkd", h, W)
    assert told.positive == pytest.approx(float((c > 0).double().mean()))
    assert told.ratio == pytest.approx(float(other.norm(dim=1).mean() / h.norm(dim=1).mean()), rel=1e-5)
    best = c[torch.arange(len(h)), (c.sum(2) + b).argmax(1)]  # (N, D)
    threshold = torch.stack([row[row > 0].mean() for row in best]).mean()
    areas = []
    for at in (torch.inf, threshold):
        energies = [torch.einsum("nd,kd->nkd", x, W).clamp(max=at).sum(2).add(b).logsumexp(1) for x in (h, other)]
        areas.append(metrics(*energies).auroc)
    pairs = len(h) * len(other)  # in float32 a few of them are tied, or the other way round
    assert told.gain == pytest.approx(areas[1] - areas[0], abs=4 / pairs)
    assert ("likely to help" in str(told)) == (told.gain > 0)
    assert ("is likely to hurt" in caplog.text) == (told.gain <= 0)
    assert "rho_norm 1.2 leaves nothing" in str(dataclasses.replace(told, gain=-0.1, positive=0.3))


def test_what_cannot_be_tuned(tmp_path: Path) -> None:
    corners = training_run.benchmark(48)
    for method, message in (("plain", "plain: has no rho_norm to tune"), ("snn", "snn: .* leave out rho_norm")):
        with pytest.raises(InputError, match=message):
            tune(training_run.config(method, 1), tmp_path / "runs", benchmark=corners)
    with pytest.raises(InputError, match="there is no value of rho_norm from 0 to 4"):
        tune(training_run.config("spcp", 1), tmp_path / "runs", grid=(7.0,), benchmark=corners)
    with pytest.raises(InputError, match="corners: has no validation set to tune on; give it one"):
        tune(training_run.config("spcp", 1), tmp_path / "runs", benchmark=dataclasses.replace(corners, val=None))
    assert not (tmp_path / "runs").exists()  # nothing was trained
    assert with_rho_norm(training_run.config("logitnorm", 1), 0.5, 2).truncation == Truncation(0.5)


def test_what_chose_rho_norm_does_not_calibrate(tmp_path: Path) -> None:
    """The run remembers which validation samples it was chosen on, and calibrates on the others by itself."""
    corners = training_run.benchmark(48)
    tuning = tune(training_run.config("spcp", 1), tmp_path, grid=(0.0, 0.5), benchmark=corners)
    chosen_on, rest = split(40)
    for rho_norm in (0.0, 0.5):
        run = Run.open(run_folder(tmp_path, rho_norm, 0))
        assert torch.equal(chosen_on, run.chosen_on(corners))
        whole = Evaluation(run, corners)
        energy = whole.scores(build_score("energy"), "val")
        for score in ("energy", None):
            detector, evaluation = calibrate_run(run, score, benchmark=corners)
            assert len(detector.calibration_scores) == len(rest)
            assert torch.equal(evaluation.bank("val").features, whole.bank("val").features[chosen_on])
            if score == "energy":
                assert torch.equal(detector.calibration_scores, energy[rest].sort().values)
        noise = metrics(energy[chosen_on], evaluation.scores(build_score("energy"), "ood_val/noise")).auroc
        assert [row["auroc"] for row in tuning.rows if row["rho_norm"] == rho_norm] == [noise]
        table = Evaluation(run, dataclasses.replace(corners, far={"ood": as_ood(corners.test)})).table(["energy"])
        assert torch.equal(table.scores["energy", "val"], energy[rest])
    with pytest.raises(InputError, match=r"on 21 validation samples, and the other 19 are too few for alpha = 0.01"):
        calibrate_run(run, "energy", alpha=0.01, benchmark=corners)
    assert corners.val is not None
    fewer = dataclasses.replace(corners, val=take(corners.val, range(30)))
    with pytest.raises(InputError, match="chosen on a part of 40 validation samples, but corners has 30 now"):
        calibrate_run(run, "energy", benchmark=fewer)
    other = dataclasses.replace(fewer, name="other")  # on other data nothing was chosen
    assert len(calibrate_run(run, "energy", benchmark=other)[0].calibration_scores) == 30


def test_the_promise_holds_after_choosing() -> None:
    """Ten equal candidates and 40 validation samples: choosing and calibrating on the same ones would break it."""
    rng = np.random.default_rng(0)
    chosen_on, rest = (part.numpy() for part in split(40, 0.05))
    rates: dict[str, list[float]] = {"apart": [], "together": []}
    for _ in range(4000):
        id_scores, ood_scores, new = (rng.normal(size=(10, n)) for n in (40, 40, 50))
        for way, choosing, calibrating in (("apart", chosen_on, rest), ("together", slice(19), slice(19))):
            areas = (id_scores[:, choosing, None] > ood_scores[:, None]).mean((1, 2))
            best = areas.argmax()
            calibration = np.sort(id_scores[best, calibrating])
            threshold = calibration[threshold_rank(len(calibration), 0.05) - 1]
            rates[way].append((new[best] < threshold).mean())
    error = 3 * np.std(rates["apart"]) / 4000**0.5
    assert abs(np.mean(rates["apart"]) - 0.05) < error
    assert np.mean(rates["together"]) > 0.07  # what the division is for
