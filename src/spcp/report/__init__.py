"""The report on some runs: verdict, tables, distributions, ROC, contribution patterns, examples."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ..data import Benchmark
from ..errors import InputError
from ..runs import Run
from ..tables import to_csv
from . import figures, page
from .contents import contents, sparsity_rows
from .study import Study as Study
from .study import all_rows, operating_points
from .study import gather as gather


def report(
    runs: Sequence[str | Path | Run],
    folder: str | Path,
    *,
    scores: Sequence[str] | None = None,
    title: str | None = None,
    choice: Sequence[Mapping[str, Any]] = (),
    benchmark: Benchmark | None = None,
    banks: str | Path | None = None,
) -> Path:
    """Write a report on some runs, and return its page.

    Args:
        runs: the runs, or their folders; those that differ by the seed alone are taken together.
        folder: for `report.html`, `report.md`, `results.csv`, `operating.csv` and the figures.
        scores: names; by default all that make sense.
        title: of the page.
        choice: rows of a `Tuning`, if that is how rho_norm was chosen.
        benchmark: instead of the one that the runs were trained on.
        banks: a folder for features; by default in the user's cache.
    """
    study = gather(runs, scores=scores, title=title, choice=choice, benchmark=benchmark, banks=banks)
    return write(study, folder)


def write(study: Study, folder: str | Path) -> Path:
    """Write the report on a study, and return its page."""
    files = {"results.csv": to_csv(all_rows(study)), "operating.csv": to_csv(operating_points(study))}
    return page.write(folder, "report", contents(study), figures.draw(study), files)


def patterns(runs: Sequence[str | Path | Run], folder: str | Path) -> tuple[list[dict[str, Any]], list[Path]]:
    """Measure how few weights carry the predictions of some runs, and draw it; return rows and files."""
    folder = page.output_folder(folder)
    study = gather(runs, scores=["energy"])
    rows = sparsity_rows(study)
    if not rows:
        raise InputError("no linear layer makes the logits of these runs, so there are no contributions to look at")
    drawn = {"patterns": figures.sorted_matrices(study.arms), "units": figures.unit_contributions(study)}
    files = [figures.save(figure[0], folder, name) for name, figure in drawn.items() if figure is not None]
    return rows, list(itertools.chain(*files))
