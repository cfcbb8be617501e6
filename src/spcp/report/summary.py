"""The verdict of a report in sentences: the result, its certainty, and where it is the other way round."""

from __future__ import annotations

from ..comparison import Verdict
from ..evaluation import ALPHA
from .study import Arm, SetDifference, Study, decisions


def summarize(study: Study) -> list[str]:
    """Write sentences, the most important first; the tables show all that they state."""
    subject, reference = study.subject, study.reference
    differences = study.differences(subject)
    sentences = _decision(study)
    if reference is not None and differences:
        groups = [row for row in differences if row.dataset == "mean"]
        groups.sort(key=lambda row: row.difference.verdict is Verdict.UNCLEAR)
        sentences += [_group(study.main_score, subject, reference, row) for row in groups]
        sentences += _extremes(subject, reference, [row for row in differences if row.dataset != "mean"])
        before, after = (100 * arm.accuracy[0] for arm in (reference, subject))
        sentences.append(f"ID accuracy: {before:.1f} % with {reference.name}, {after:.1f} % with {subject.name}.")
    else:
        for group in study.groups:
            mean, deviation = subject.mean(study.main_score, group)["auroc"]
            area = f"{100 * mean:.1f}" + (f" ± {100 * deviation:.1f}" if len(subject.runs) > 1 else "")
            sentences.append(f"{subject.name}: AUROC {area} on {group}-OOD sets with {study.main_score}.")
        sentences.append(f"ID accuracy: {100 * subject.accuracy[0]:.1f} %.")
        if reference is None:
            sentences.append("There is no run without truncation to compare with; add one (spcp train --method plain).")
        elif reference is not subject:
            sentences.append(f"{subject.name} and {reference.name} have no seed in common, so they are not compared.")
    return sentences + _inverted(study) + _best(study)


def _decision(study: Study) -> list[str]:
    """State what is flagged at the promised false alarm rate: by the recommended detector first."""
    made = decisions(study)
    if not made:
        return []
    parts = []
    for one in made:
        rates = [f"{100 * one.detection_rates[group, 'mean'].mean:.1f} % of {group}-OOD" for group in study.groups]
        name = f"{one.score} with {one.arm}" + (f" ({one.role})" if one.role else "")
        parts.append(
            f"{name} flags {' and '.join(rates)} inputs ({100 * one.false_alarm_rate.mean:.1f} % of ID test inputs)"
        )
    return [f"At a promised false alarm rate of {100 * ALPHA:.0f} %: {'; '.join(parts)}."]


def _group(score: str, subject: Arm, reference: Arm, row: SetDifference) -> str:
    """State the difference on a group of sets."""
    seeds, p_value = row.difference.by_seed, row.difference.p_value or 0.0
    before, after, points = 100 * row.reference, 100 * row.arm, 100 * row.difference.mean
    areas = f"AUROC of {score} {before:.1f} → {after:.1f}, {points:+.1f} points"
    test = f"{'p < 0.001' if p_value < 0.001 else f'p = {p_value:.3f}'} over test samples"
    if row.difference.interval is None:
        certainty = f"{test}; one seed is weak evidence, train more"
    else:
        low, high = (100 * end for end in row.difference.interval)
        larger = sum(value > 0 for value in seeds)
        certainty = f"larger in {larger} of {len(seeds)} seeds, 95 % interval {low:+.1f} to {high:+.1f}; {test}"
    if row.difference.verdict is Verdict.UNCLEAR:
        reason = "seeds differ too much to be sure" if p_value < 0.05 else "that is no clear difference"
        names = f"{subject.name} instead of {reference.name}"
        return f"On {row.group}-OOD sets: {areas} with {names}, but {reason} ({certainty})."
    verdict = row.difference.verdict.value
    return f"On {row.group}-OOD sets {subject.name} is {verdict} than {reference.name}: {areas} ({certainty})."


def _extremes(subject: Arm, reference: Arm, sets: list[SetDifference]) -> list[str]:
    """State where the gain is largest, and where it is a loss."""
    ordered = sorted(sets, key=lambda row: row.difference.mean)
    best, losses = ordered[-1], [row for row in ordered if row.difference.mean < 0]
    gain = 100 * best.difference.mean
    sentences = [f"The largest gain is on {best.dataset} ({gain:+.1f})."] if gain > 0 else []
    if losses:
        listed = ", ".join(
            f"{row.dataset} ({100 * row.difference.mean:+.1f}, {row.difference.verdict.value})" for row in losses
        )
        sentences.append(f"{subject.name} is below {reference.name} on {listed}.")
    elif len(sets) > 1:
        sentences.append(f"On none of the {len(sets)} sets is {subject.name} below {reference.name}.")
    return sentences


def _inverted(study: Study) -> list[str]:
    """State which OOD sets score above ID inputs."""
    sentences = []
    for arm in dict.fromkeys(arm for arm in (study.reference, study.subject) if arm is not None):
        areas = {
            name: arm.mean(study.main_score, group, name)["auroc"][0] for group, name in study.sets if name != "mean"
        }
        names = [name for name, area in areas.items() if area < 0.5]
        if names:
            listed = " and ".join(part for part in (", ".join(names[:-1]), names[-1]) if part)
            sentences.append(
                f"{arm.name} mostly gives {listed} higher {study.main_score} scores than ID inputs (AUROC below 50)."
            )
    return sentences


def _best(study: Study) -> list[str]:
    """State which score is best on each group, where that is not the main one."""
    sentences = []
    for group in study.groups:
        means = {(arm.name, score): arm.mean(score, group)["auroc"][0] for arm in study.arms for score in study.scores}
        arm, score = max(means, key=lambda key: means[key])
        if score != study.main_score:
            area, count = means[arm, score], len(study.scores)
            sentences.append(f"The best of {count} scores on {group}-OOD sets is {score} with {arm}: {100 * area:.1f}.")
    return sentences
