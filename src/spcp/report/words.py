"""The verdict in words: what came out, how sure that is, and where it turns around."""

from __future__ import annotations

from .study import Arm, Difference, Study


def verdict(study: Study) -> list[str]:
    """Sentences, the most important first; nothing is said that the tables do not show."""
    said: list[str] = []
    subject, reference = study.subject, study.reference
    differences = [] if reference is None else study.differences(subject)
    if reference is not None and differences:
        groups = [own for own in differences if own.name == "mean"]
        groups.sort(key=lambda own: own.word == "no clear difference")  # what is clear comes first
        said += [_group_sentence(study, subject, reference, own) for own in groups]
        said += _turns(differences, subject, reference)
        before, after = reference.accuracy[0], subject.accuracy[0]
        said.append(
            f"Accuracy on known inputs: {before:.1f} % with {reference.name}, {after:.1f} % with {subject.name}."
        )
    else:
        for group in dict.fromkeys(group for group, _ in study.sets):
            area = subject.mean(study.main, group)["auroc"]
            said.append(f"{subject.name}: AUROC {_pm(area, subject)} on {group} sets with {study.main}.")
        said.append(f"Accuracy on known inputs: {subject.accuracy[0]:.1f} %.")
        if reference is None:
            said.append("There is no run without a bound to compare with; add one (spcp train --method plain).")
        elif reference is not subject:
            said.append(f"{subject.name} and {reference.name} have no seeds in common, so they are not compared.")
    said += _inverted(study)
    said += _best(study)
    return said


def _group_sentence(study: Study, subject: Arm, reference: Arm, own: Difference) -> str:
    seeds, up = len(own.by_seed), sum(value > 0 for value in own.by_seed)
    areas = f"AUROC of {study.main} {own.reference[0]:.1f} → {own.arm[0]:.1f}, {own.points:+.1f} points"
    p = "p < 0.001" if own.samples.p_value < 0.001 else f"p = {own.samples.p_value:.3f}"
    if own.interval is None:
        sure = f"{p} over test samples; one seed says little, train more"
    else:
        low, high = own.interval
        sure = f"larger in {up} of {seeds} seeds, 95 % interval {low:+.1f} to {high:+.1f}; {p} over test samples"
    if own.word == "no clear difference":
        apart = (
            "seeds differ too much to be sure of it" if own.samples.p_value < 0.05 else "that is no clear difference"
        )
        return f"On {own.group} sets: {areas} with {subject.name} instead of {reference.name}, but {apart} ({sure})."
    return f"On {own.group} sets {subject.name} is {own.word} than {reference.name}: {areas} ({sure})."


def _turns(differences: list[Difference], subject: Arm, reference: Arm) -> list[str]:
    """Where it is the other way round."""
    sets = [own for own in differences if own.name != "mean"]
    best = max(sets, key=lambda own: own.points)
    worse = sorted((own for own in sets if own.points < 0), key=lambda own: own.points)
    said = [f"The largest gain is on {best.name} ({best.points:+.1f})."] if best.points > 0 else []
    if worse:
        listed = ", ".join(f"{own.name} ({own.points:+.1f}, {own.word})" for own in worse)
        said.append(f"{subject.name} is below {reference.name} on {listed}.")
    elif len(sets) > 1:
        said.append(f"On none of the {len(sets)} sets is {subject.name} below {reference.name}.")
    return said


def _inverted(study: Study) -> list[str]:
    """Sets of which a network is surer than of what it knows."""
    said = []
    for arm in dict.fromkeys(own for own in (study.reference, study.subject) if own is not None):
        names = [
            name for group, name in study.sets if name != "mean" and arm.mean(study.main, group, name)["auroc"][0] < 50
        ]
        if names:
            said.append(
                f"By {study.main}, {arm.name} is on the whole surer of {_listed(names)} than of what it knows (AUROC "
                "below 50)."
            )
    return said


def _best(study: Study) -> list[str]:
    """Which detector is best on each group."""
    said = []
    for group in dict.fromkeys(group for group, _ in study.sets):
        area, name, arm = max(
            ((arm.mean(name, group)["auroc"][0], name, arm) for arm in study.arms for name in study.detectors),
            key=lambda own: own[0],
        )
        if name != study.main and len(study.detectors) > 1:
            said.append(
                f"The best of {len(study.detectors)} detectors on {group} sets is {name} with {arm.name}: {area:.1f}."
            )
    return said


def _pm(value: tuple[float, float], arm: Arm) -> str:
    return f"{value[0]:.1f} ± {value[1]:.1f}" if len(arm.runs) > 1 else f"{value[0]:.1f}"


def _listed(names: list[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
