"""Inputs that were flagged and missed, as pictures, with the contributions that drove them."""

from __future__ import annotations

import base64
import io
from dataclasses import dataclass

import torch
from torch import Tensor

from ..contributions import effective_threshold
from ..data import FileSet, ImageTransform
from ..data.images import as_image, with_channels
from .study import EvaluatedRun, Study

SIDE = 84  # pixels of a picture on the page
SHOWN = 4  # of each kind


@dataclass(frozen=True)
class Example:
    """An input, with the results of two networks."""

    picture: str  # data URI, or nothing for what is no picture
    dataset: str
    prediction: str
    p_value: float
    reference_p_value: float | None
    reference_prediction: str
    bars: tuple[tuple[float, float], ...]  # the largest contributions to the predicted class: kept, truncated
    more: float  # the sum of all others


def examples(study: Study) -> dict[str, list[Example]]:
    """Choose OOD inputs that are missed and detected, and ID inputs that are flagged, by the main score at 5 %."""
    run = study.subject.runs[0]
    limit = run.score_threshold(study.main_score)
    if limit is None:
        return {}
    scores = {role: values for (name, role), values in run.table.scores.items() if name == study.main_score}
    ood = {role: values for role, values in scores.items() if role.startswith(("near/", "far/"))}
    chosen = {
        "OOD, missed": [(role, i) for role, values in ood.items() for i in _top(values, values >= limit, True)],
        "OOD, detected": [(role, i) for role, values in ood.items() for i in _top(values, values < limit, False)],
        "ID, flagged": [("test", i) for i in _top(scores["test"], scores["test"] < limit, False, SHOWN)],
    }
    return {
        title: [_example(study, role, i) for role, i in places[: 2 * SHOWN]]
        for title, places in chosen.items()
        if places
    }


def surprise(study: Study) -> tuple[Example, Example] | None:
    """Choose a usual ID input, and the OOD input that the reference scores highest; None if that is below the median.

    Among OOD inputs with the highest p-values, one that the subject flags is taken first.
    """
    reference = study.reference
    if reference is None or reference is study.subject:
        return None
    score, first, second = study.main_score, reference.runs[0], study.subject.runs[0]
    limit = second.score_threshold(score)
    if limit is None or first.score_threshold(score) is None:
        return None
    places: list[tuple[float, bool, float, str, int]] = []
    for (name, role), scores in first.table.scores.items():
        if name == score and role.startswith(("near/", "far/")):
            p, flagged = first.p_values(score, scores), second.table.scores[name, role] < limit
            for i in {int(scores.argmax()), int(torch.where(flagged, scores, -torch.inf).argmax())}:
                places.append((min(0.99, float(p[i])), bool(flagged[i]), float(scores[i]), role, i))
    best = max(places, default=None)
    if best is None or best[0] < 0.5:
        return None
    id_scores = first.table.scores[score, "test"]
    usual = int((id_scores - id_scores.median()).abs().argmin())
    return _example(study, "test", usual), _example(study, best[3], best[4])


def _top(scores: Tensor, among: Tensor, largest: bool, count: int = 1) -> list[int]:
    """Return the places of the most extreme scores among some."""
    index = among.nonzero()[:, 0]
    order = scores[index].argsort(descending=largest, stable=True)
    return index[order][:count].tolist()


def _example(study: Study, role: str, i: int) -> Example:
    run, reference = study.subject.runs[0], study.reference
    p_value, k = _result(study, run, role, i)
    other = _result(study, reference.runs[0], role, i) if reference not in (None, study.subject) else (None, k)
    bars, more = _bars(run, role, i, k) if run.has_contributions else ([], 0.0)
    return Example(
        picture(study, role, i),
        "ID" if role == "test" else role.split("/")[-1],
        study.benchmark.class_names[k],
        p_value,
        other[0],
        study.benchmark.class_names[other[1]],
        tuple(bars),
        more,
    )


def _result(study: Study, run: EvaluatedRun, role: str, i: int) -> tuple[float, int]:
    """Return the p-value and the predicted class of a sample."""
    scores = run.table.scores[study.main_score, role][i : i + 1]
    return float(run.p_values(study.main_score, scores)), int(run.evaluation.bank(role).predictions[i])


def _bars(run: EvaluatedRun, role: str, i: int, k: int) -> tuple[list[tuple[float, float]], float]:
    """Return the 12 largest contributions to class k, what is kept and what is truncated, and the sum of the others."""
    head = run.evaluation.model.head
    threshold = effective_threshold(head)
    limit = float("inf") if threshold is None else float(threshold)
    c = run.evaluation.bank(role).features[i] * head.weight[k].detach().cpu()
    bars = [(min(value, limit), max(0.0, value - limit)) for value in c.sort(descending=True).values[:12].tolist()]
    return bars, float(c.clamp(max=limit).sum()) - sum(kept for kept, _ in bars)


def picture(study: Study, role: str, i: int) -> str:
    """Return a sample as a data URI; nothing for what is no picture."""
    data = study.benchmark.sets()[role]
    if not isinstance(study.benchmark.transform, ImageTransform) or (
        isinstance(data, FileSet) and data.kind != "image"
    ):
        return ""
    sample = data[i][0]
    if isinstance(sample, torch.Tensor) and sample.dtype != torch.uint8:
        return ""
    image = as_image(sample, f"{role}[{i}]")
    image = with_channels(image, study.benchmark.transform.channels)
    if max(image.size) < SIDE:
        times = SIDE // max(image.size)
        image = image.resize((image.width * times, image.height * times), 0)  # as large pixels
    else:
        image.thumbnail((2 * SIDE, 2 * SIDE))
    file = io.BytesIO()
    image.save(file, "PNG", optimize=True)
    return "data:image/png;base64," + base64.b64encode(file.getvalue()).decode()
