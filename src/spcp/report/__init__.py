"""The report on some runs: verdict, tables, distributions, ROC, contribution patterns, examples."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ..data import Benchmark
from ..errors import InputError
from ..files import written
from . import figures, page
from .study import Study as Study
from .study import all_rows, gather, has_head, operating_points


def report(
    runs: Sequence[str | Path],
    folder: str | Path,
    *,
    detectors: Sequence[str] | None = None,
    title: str | None = None,
    choice: Sequence[Mapping[str, Any]] = (),
    benchmark: Benchmark | None = None,
    banks: str | Path | None = None,
) -> Path:
    """Write a report on some runs, and return its page.

    Args:
        runs: their folders; those that differ by the seed alone are taken together.
        folder: for `report.html`, `report.md`, `results.csv`, `operating.csv` and the figures.
        detectors: names; by default all that make sense.
        title: of the page.
        choice: rows of a `Tuning`, if that is how rho_norm was found.
        benchmark: instead of the runs' own.
        banks: where features are kept; by default in the user's cache.
    """
    study = gather(runs, detectors=detectors, title=title, choice=choice, benchmark=benchmark, banks=banks)
    return write(study, folder)


def write(study: Study, folder: str | Path) -> Path:
    """Write what was gathered."""
    folder = Path(folder).expanduser()
    if folder.exists() and not folder.is_dir():
        raise InputError(f"{folder}: is a file; name a folder for the report")
    drawn = draw(study)
    told = page.context(study, drawn)
    texts = {
        "results.csv": all_rows(study).csv(),
        "operating.csv": _csv(operating_points(study)),
        "report.md": page.markdown(told),
        "report.html": page.html(study, told),
    }
    for name, (figure, _) in drawn.items():
        figures.save(figure, folder / "figures", name)
    for name, text in texts.items():
        with written(folder / name) as file:
            file.write(text.encode())
    return folder / "report.html"


def draw(study: Study) -> dict[str, tuple[Any, str]]:
    """The figures by name, each with its caption."""
    main = study.main
    drawn: dict[str, tuple[Any, str]] = {
        "scores": (
            figures.distributions(study, main),
            f"How {main} scores known and odd inputs; what lies left of the line is flagged.",
        ),
        "roc": (figures.roc(study, main), f"ROC of {main}: higher is better, the diagonal is guessing."),
    }
    arms = [arm for arm in study.arms if has_head(arm.runs[0])]
    if arms:
        drawn["patterns"] = (
            figures.sorted_matrices(arms),
            "Mean contribution of each classifier weight on known test inputs, sorted within each class.",
        )
    units = figures.unit_contributions(study)
    if units is not None:
        drawn["units"] = units
    curves = figures.training_curves(study)
    if curves is not None:
        drawn["training"] = (curves, "Training: the loss, the threshold, and the share of contributions it cuts.")
    return drawn


def patterns(runs: Sequence[str | Path], folder: str | Path) -> tuple[list[dict[str, Any]], list[Path]]:
    """How few weights carry the predictions of some runs, and the figure of it."""
    folder = Path(folder).expanduser()
    if folder.exists() and not folder.is_dir():
        raise InputError(f"{folder}: is a file; name a folder for the figures")
    study = gather(runs, detectors=["energy"])
    rows = page.sparsity_rows(study)
    if not rows:
        raise InputError("the logits of these runs come of no linear layer, so there are no contributions to look at")
    figure = figures.sorted_matrices([arm for arm in study.arms if has_head(arm.runs[0])])
    files = figures.save(figure, folder, "patterns")
    units = figures.unit_contributions(study)
    return rows, files + (figures.save(units[0], folder, "units") if units is not None else [])


def _csv(rows: Sequence[Mapping[str, Any]]) -> str:
    file = io.StringIO()
    writer = csv.DictWriter(file, list(rows[0]) if rows else ["arm"], lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return file.getvalue()
