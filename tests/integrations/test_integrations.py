"""Callbacks, measures, loggers and repositories of other libraries, used as their users do."""

from __future__ import annotations

import doctest
import json
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from others import imported
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from spcp import Detector, SPCPLinear
from spcp.config import config_for
from spcp.errors import InputError
from spcp.integrations import hub
from spcp.integrations.loggers import build_loggers
from spcp.metrics import metrics
from spcp.training import train

pytestmark = [
    pytest.mark.usefixtures("library"),
    pytest.mark.filterwarnings(
        "ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::PendingDeprecationWarning"
    ),
    pytest.mark.filterwarnings("ignore:.*num_workers.*", "ignore:.*isinstance.treespec.*", "ignore:.*pin_memory.*"),
]


def blobs(count: int, seed: int) -> tuple[Tensor, Tensor]:
    """Three classes of ten numbers."""
    rng = torch.Generator().manual_seed(seed)
    y = torch.arange(count) % 3
    return 3 * nn.functional.one_hot(y, 10) + torch.randn(count, 10, generator=rng), y


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(10, 16), nn.ReLU(), nn.Linear(16, 3))


HELD_OUT = blobs(200, 1)[0]


# Lightning


class Outer(nn.Module):
    """The network as the LightningModule holds it."""

    def __init__(self) -> None:
        super().__init__()
        self.network = network()

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.network(x)
        return out


def lightning_fit(folder: Path, callback: Any, epochs: int = 3, **options: Any) -> tuple[Any, Any]:
    lightning = imported("pytorch_lightning")

    class Module(Outer, lightning.LightningModule):  # type: ignore[misc, name-defined]
        def training_step(self, batch: tuple[Tensor, Tensor], _: int) -> Tensor:
            return nn.functional.cross_entropy(self(batch[0]), batch[1])

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), lr=0.1)

    quiet = {"enable_progress_bar": False, "enable_model_summary": False, "accelerator": "cpu"}
    logger = imported("pytorch_lightning.loggers").CSVLogger(folder, name="", version="")
    trainer = lightning.Trainer(
        max_epochs=epochs, default_root_dir=folder, logger=logger, callbacks=[callback], log_every_n_steps=1, **quiet
    )
    module = Module()
    trainer.fit(module, DataLoader(TensorDataset(*blobs(60, 0)), 20), **options)
    return trainer, module


def test_lightning_trains_logs_and_calibrates(tmp_path: Path) -> None:
    imported("pytorch_lightning")
    from spcp.integrations.lightning import SPCPCallback

    callback = SPCPCallback(1.0, calibration_data=HELD_OUT, score="energy", alpha=0.1)
    trainer, module = lightning_fit(tmp_path, callback)
    head = module.network[2]
    assert isinstance(head, SPCPLinear)
    assert head.truncation.total_steps == 9  # forward passes: 3 epochs of 3 batches
    assert int(head.updates) == 9
    logged = trainer.logged_metrics
    assert float(logged["spcp_threshold"]) == pytest.approx(float(head.threshold))
    assert 0 <= float(logged["spcp_truncated"]) < 1
    assert not head._forward_pre_hooks
    detector = callback.detector
    assert detector.alpha == 0.1
    saved = Detector.load(tmp_path / "detector.safetensors", Outer())
    assert torch.equal(saved.detect(HELD_OUT).is_ood, detector.detect(HELD_OUT).is_ood)


@pytest.mark.filterwarnings("ignore:The dirpath has changed")
def test_lightning_restores_the_threshold(tmp_path: Path) -> None:
    imported("pytorch_lightning")
    from spcp.integrations.lightning import SPCPCallback

    trainer, module = lightning_fit(tmp_path / "a", SPCPCallback(1.0))
    path = tmp_path / "last.ckpt"
    trainer.save_checkpoint(path)
    _, again = lightning_fit(tmp_path / "b", SPCPCallback(1.0), ckpt_path=path)  # has no epoch left to train
    assert torch.equal(again.network[2].threshold, module.network[2].threshold)
    assert torch.equal(again.network[2].updates, module.network[2].updates)


# Hugging Face


class Classified(nn.Module):
    """A model as the Trainer wants it: labels in, loss and logits out."""

    def __init__(self) -> None:
        super().__init__()
        self.network = network()

    def forward(self, x: Tensor, labels: Tensor | None = None) -> Any:
        logits = self.network(x)
        return logits if labels is None else (nn.functional.cross_entropy(logits, labels), logits)


def test_the_trainer_trains_logs_and_calibrates(tmp_path: Path) -> None:
    transformers = imported("transformers")
    imported("accelerate")
    from spcp.integrations.transformers import SPCPTrainerCallback

    settings = transformers.TrainingArguments(
        *(str(tmp_path),),
        num_train_epochs=3,
        per_device_train_batch_size=10,
        gradient_accumulation_steps=2,
        logging_steps=1,
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
        dataloader_pin_memory=False,
        use_cpu=True,
    )
    callback = SPCPTrainerCallback(1.0, calibration_data=HELD_OUT, score="energy")
    samples = [{"x": x, "labels": y} for x, y in zip(*blobs(60, 0), strict=True)]
    model = Classified()
    trainer = transformers.Trainer(model, settings, train_dataset=samples, callbacks=[callback])
    head = model.network[2]
    assert isinstance(head, SPCPLinear)  # before training, so that a checkpoint's threshold has its place
    trainer.train()
    assert head.truncation.total_steps == int(head.updates) == 18  # micro-batches
    logged = [entry for entry in trainer.state.log_history if "loss" in entry]
    assert len(logged) == 9
    assert all(entry["spcp_threshold"] > 0 and 0 <= entry["spcp_truncated"] < 1 for entry in logged)
    assert callback.detector.detect(HELD_OUT).is_ood.double().mean() <= 0.06
    assert (tmp_path / "detector.safetensors").is_file()


def test_a_callback_without_truncation_only_calibrates(tmp_path: Path) -> None:
    imported("pytorch_lightning")
    from spcp.integrations.lightning import SPCPCallback

    callback = SPCPCallback(0, calibration_data=HELD_OUT, train_data=[blobs(60, 0)])
    trainer, module = lightning_fit(tmp_path, callback, epochs=1)
    assert type(module.network[2]) is nn.Linear
    assert "spcp_threshold" not in trainer.logged_metrics
    assert callback.detector.alpha == 0.05


# torchmetrics


def test_the_metric_is_the_library_s() -> None:
    imported("torchmetrics")
    from spcp.integrations import torchmetrics as module

    assert doctest.testmod(module).failed == 0
    id_scores, ood_scores = torch.randn(40) + 1, torch.randn(30)
    expected = metrics(id_scores, ood_scores)
    whole, one = module.OODMetric(), module.OODMetric("fpr95")
    for metric in (whole, one):
        for scores, is_ood in ((id_scores[:25], False), (ood_scores, True), (id_scores[25:], False)):
            metric.update(scores, torch.full(scores.shape, is_ood))
    assert {name: pytest.approx(float(value)) for name, value in whole.compute().items()} == {
        name: getattr(expected, name) for name in module.MEASURES
    }
    assert float(one.compute()) == pytest.approx(expected.fpr95)
    one.reset()
    with pytest.raises(InputError, match="no scores yet"), pytest.warns(UserWarning, match="before"):
        one.compute()
    with pytest.raises(InputError, match="measure = 'auc' must be one of fpr95"):
        module.OODMetric("auc")
    with pytest.raises(InputError, match="must have one shape"):
        one.update(torch.zeros(3), torch.zeros(2))


# scikit-learn


def test_scikit_learn_s_checks_pass() -> None:
    checks = imported("sklearn.utils.estimator_checks")
    from spcp.integrations.sklearn import OODDetector

    for score in ("mds", "knn"):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # few samples, and what the checks do on purpose
            results = checks.check_estimator(OODDetector(score), on_fail=None, on_skip=None)
        assert not [result["check_name"] for result in results if result["status"] == "failed"]
        assert sum(result["status"] == "passed" for result in results) > 40


@pytest.mark.parametrize("score", ["mds", "knn", "energy", "consensus"])
def test_the_outlier_detector_keeps_its_promise(score: str) -> None:
    """Of new samples at most alpha is flagged, on average over fits; and what is far away is flagged."""
    imported("sklearn")
    from spcp.integrations import sklearn as module

    x, y = (part.numpy() for part in blobs(6000, 3))
    far = np.full((5, 10), -30.0 if score != "energy" else 0.0)
    rates = []
    for i in range(20):
        rows = slice(200 * i, 200 * (i + 1))
        detector = module.OODDetector(score, alpha=0.1, random_state=i).fit(x[rows], y[rows])
        rates.append((detector.predict(x[4000:]) == -1).mean())
        assert np.array_equal(detector.predict(x[:50]) == -1, detector.decision_function(x[:50]) < 0)
        assert np.array_equal(detector.p_values(x[:50]) <= 0.1, detector.predict(x[:50]) == -1)
    assert np.mean(rates) <= 0.1 + 3 * np.std(rates) / 20**0.5
    assert (detector.predict(far) == -1).all()
    assert detector.classes_.tolist() == [0, 1, 2]


def test_few_samples_flag_nothing() -> None:
    imported("sklearn")
    from spcp.integrations.sklearn import OODDetector

    x = blobs(40, 0)[0].numpy()
    with pytest.warns(UserWarning, match="12 calibration samples cannot promise alpha = 0.05, so nothing is flagged"):
        detector = OODDetector().fit(x)
    assert (detector.predict(100 * x) == 1).all()
    with pytest.raises(InputError, match="calibration_share = 2 must lie between 0 and 1"):
        OODDetector(calibration_share=2).fit(x)
    with pytest.raises(InputError, match="odin: needs the inputs of a network"):
        OODDetector("odin").fit(x)


# The hub


@pytest.fixture
def detector() -> Detector:
    return Detector(network(), "energy").calibrate(HELD_OUT, 0.1, delta=0.2)


def test_a_detector_goes_to_the_hub_s_format_and_back(detector: Detector, tmp_path: Path) -> None:
    detector.notes["rates"] = [{"dataset": "test", "samples": 50, "flagged": 0.04}]
    folder = hub.save_pretrained(detector, tmp_path / "repository", license="apache-2.0", about="Three blobs.")
    again = hub.from_pretrained(folder, network())
    x = blobs(30, 5)[0] * 2
    for ours, theirs in zip(detector.detect(x), again.detect(x), strict=True):
        assert torch.equal(ours, theirs)
    card = (folder / "README.md").read_text()
    assert card.startswith("---\nlibrary_name: spcp\n")
    for words in (
        "license: apache-2.0",
        "Three blobs.",
        "at most 10 % of in-distribution inputs",
        "| test | 50 | 4.0 % |",
    ):
        assert words in card
    assert json.loads((folder / "config.json").read_text())["alpha"] == 0.1


def test_what_is_not_a_detector_s_repository(
    detector: Detector, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(InputError, match=r"holds no detector.safetensors; name a folder that save_pretrained wrote"):
        hub.from_pretrained(tmp_path)
    with pytest.raises(InputError, match="no threshold yet"):
        hub.save_pretrained(Detector(network(), "energy"), tmp_path)
    folder = hub.save_pretrained(detector, tmp_path / "a")
    with pytest.raises(InputError, match="does not name its network"):
        hub.from_pretrained(folder)
    imported("huggingface_hub")
    monkeypatch.setattr("huggingface_hub.snapshot_download", lambda name, **_: folder if name == "me/it" else 1 / 0)
    assert hub.from_pretrained("me/it", network()).alpha == 0.1
    with pytest.raises(InputError, match="me/other: neither a folder nor a repository that can be fetched"):
        hub.from_pretrained("me/other")


# Logs


def test_training_is_logged_to_tensorboard(tmp_path: Path) -> None:
    imported("tensorboard")
    config = config_for("digits", "spcp", epochs=2, width=8, images=100)
    folder = tmp_path / "run"
    run = train(config, folder, loggers=build_loggers(["tensorboard"], folder, config))
    events = imported("tensorboard.backend.event_processing.event_accumulator").EventAccumulator(
        str(folder / "tensorboard")
    )
    events.Reload()
    losses = [event.value for event in events.Scalars("loss")]
    assert losses == pytest.approx([record["loss"] for record in run.history])
    with pytest.raises(InputError, match="no logger 'wandb'; there are tensorboard, mlflow"):
        build_loggers(["wandb"], folder, config)


def test_training_is_logged_to_one_mlflow_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mlflow = imported("mlflow")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    mlflow.set_tracking_uri((tmp_path / "mlruns").as_uri())
    config = config_for("digits", "spcp", epochs=2, width=8, images=100)
    folder = tmp_path / "run"
    for until in (1, 2):  # stopped, and resumed
        run = train(config, folder, until=until, loggers=build_loggers(["mlflow"], folder, config))
    (row,) = mlflow.search_runs(output_format="list")
    assert row.data.params["truncation.rho_norm"] == "1.0"
    history = mlflow.MlflowClient().get_metric_history(row.info.run_id, "loss")
    assert [one.value for one in history] == pytest.approx([record["loss"] for record in run.history])
    assert row.info.status == "FINISHED"
