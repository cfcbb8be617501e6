"""Inputs that were flagged and missed, as pictures, with the contributions that drove them."""

from __future__ import annotations

import base64
import io
from dataclasses import dataclass
from typing import Any

import torch

from ..calibration import p_values
from ..contributions import effective_threshold
from ..data import FileSet, ImageTransform
from ..data.images import as_image, with_channels
from .study import Run, Study, has_head, threshold

SIDE = 84  # pixels of a picture on the page
SHOWN = 4  # of each kind


@dataclass(frozen=True)
class Example:
    """One input and what two networks say of it."""

    picture: str  # data URI, or nothing for what is no picture
    name: str  # of the set
    label: str  # the predicted class
    p_value: float
    other_p_value: float | None  # of the reference,
    other_label: str  # and what that takes it for
    bars: tuple[tuple[float, float], ...]  # the largest contributions to the predicted class: kept, cut off
    more: float  # the sum of all others


def examples(study: Study) -> dict[str, list[Example]]:
    """Odd inputs that are missed and caught and known ones that are flagged, by the main detector at 5 %."""
    run = study.subject.runs[0]
    reference = study.reference
    other = reference.runs[0] if reference is not None and reference is not study.subject else None
    limit = threshold(run, study.main)
    if limit is None:
        return {}
    kinds: dict[str, list[Example]] = {}
    odd = {role: scores for (name, role), scores in run.table.scores.items() if name == study.main and role != "test"}
    odd = {role: scores for role, scores in odd.items() if role.startswith(("near/", "far/"))}
    missed = [(role, i) for role, scores in odd.items() for i in _top(scores, scores >= limit, True)]
    caught = [(role, i) for role, scores in odd.items() for i in _top(scores, scores < limit, False)]
    scores = run.table.scores[study.main, "test"]
    flagged = [("test", i) for i in _top(scores, scores < limit, False, SHOWN)]
    for title, chosen in (
        ("odd, and taken for known", missed),
        ("odd, and flagged", caught),
        ("known, and flagged", flagged),
    ):
        kinds[title] = [_example(study, run, other, role, i) for role, i in chosen[: 2 * SHOWN]]
    return {title: own for title, own in kinds.items() if own}


def surprise(study: Study) -> tuple[Example, Example] | None:
    """A usual known input, and the odd one that the reference is surest of; None if it is surer of what it knows.

    Among odd ones that look as known as can be, one that the subject flags is taken first.
    """
    reference = study.reference
    if reference is None or reference is study.subject:
        return None
    first, second = reference.runs[0], study.subject.runs[0]
    limit = threshold(second, study.main)
    if limit is None or threshold(first, study.main) is None:
        return None
    best: tuple[float, bool, float, str, int] | None = None
    for (name, role), scores in first.table.scores.items():
        if name == study.main and role.startswith(("near/", "far/")):
            p, flagged = _p(first, study.main, scores), second.table.scores[name, role] < limit
            for i in {int(scores.argmax()), int(torch.where(flagged, scores, -torch.inf).argmax())}:
                own = (min(0.99, float(p[i])), bool(flagged[i]), float(scores[i]), role, i)
                best = own if best is None else max(best, own)
    if best is None or best[0] < 0.5:
        return None
    known = first.table.scores[study.main, "test"]
    usual = int((known - known.median()).abs().argmin())
    return _example(study, second, first, "test", usual), _example(study, second, first, best[3], best[4])


def _top(scores: Any, among: Any, largest: bool, count: int = 1) -> list[int]:
    """The most extreme of those that are meant."""
    index = among.nonzero()[:, 0]
    order = scores[index].argsort(descending=largest, stable=True)
    return index[order][:count].tolist()


def _p(run: Run, detector: str, scores: Any) -> Any:
    return p_values(scores, run.calibration(detector))


def _example(study: Study, run: Run, other: Run | None, role: str, i: int) -> Example:
    scores = run.table.scores[study.main, role][i : i + 1]
    features = run.evaluation.features(role)
    k = int(features.k[i])
    bars: list[tuple[float, float]] = []
    more = 0.0
    if has_head(run):
        found = effective_threshold(run.evaluation.head)
        bound = float("inf") if found is None else found.item()
        c = features.h[i] * run.evaluation.head.weight[k].detach().cpu()
        top = c.sort(descending=True).values[:12].tolist()
        bars = [(min(value, bound), max(0.0, value - bound)) for value in top]
        more = float(c.clamp(max=bound).sum()) - sum(kept for kept, _ in bars)
    p_other, k_other = None, k
    if other is not None:
        p_other = float(_p(other, study.main, other.table.scores[study.main, role][i : i + 1]))
        k_other = int(other.evaluation.features(role).k[i])
    return Example(
        picture(study, role, i),
        role.split("/")[-1] if role != "test" else "known",
        study.benchmark.class_names[k],
        float(_p(run, study.main, scores)),
        p_other,
        study.benchmark.class_names[k_other],
        tuple(bars),
        more,
    )


def picture(study: Study, role: str, i: int) -> str:
    """A sample as a data URI; nothing for what is no picture."""
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
