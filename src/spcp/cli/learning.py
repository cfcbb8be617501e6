"""`spcp train`, `spcp tune` and `spcp adopt`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer import Option

from ..errors import InputError
from .app import Json, command, note, numbers, settings, show, whole_numbers
from .own_data import BenchmarkName, Flip, Known, Label, Near, Odd, OddVal, Root, Size, described, own_data

if TYPE_CHECKING:
    from ..config import Config
    from ..data import Benchmark
    from ..runs import Run

METHOD, RUN = "Method", "Training"
Network = Annotated[
    str | None,
    Option(
        "--network", "-n", help="cnn, resnet18, wideresnet28, densenet100, audio_cnn, mlp, ...", rich_help_panel=METHOD
    ),
]
Model = Annotated[
    str | None,
    Option(help="Your own: package.module:function, which builds it.", rich_help_panel=METHOD),
]
Weights = Annotated[Path | None, Option(help="Weights to start from: safetensors, or a run.", rich_help_panel=METHOD)]
Method = Annotated[str, Option("--method", "-m", help="See `spcp methods`.", rich_help_panel=METHOD)]
Options = Annotated[
    list[str], Option("--option", help="Of the method, KEY=VALUE; may be given again.", rich_help_panel=METHOD)
]
Epochs = Annotated[int | None, Option(help="How often all images are seen.", rich_help_panel=RUN)]
BatchSize = Annotated[int | None, Option(help="Images in a step.", rich_help_panel=RUN)]
Rate = Annotated[float | None, Option("--lr", help="Learning rate.", rich_help_panel=RUN)]
Width = Annotated[int | None, Option(help="Of the network; default: its own.", rich_help_panel=METHOD)]
Precision = Annotated[
    str | None, Option(help="32-true, bf16-mixed or 16-mixed; default: 32-true.", rich_help_panel=RUN)
]


@command("train", panel="Train")
def train_command(
    benchmark: BenchmarkName = None,
    root: Root = None,
    known: Known = None,
    ood: Odd = [],  # noqa: B006
    near: Near = [],  # noqa: B006
    ood_val: OddVal = "none",
    size: Size = None,
    label: Label = None,
    flip: Flip = True,
    method: Method = "spcp",
    network: Network = None,
    model: Model = None,
    weights: Weights = None,
    width: Width = None,
    rho_norm: Annotated[
        str | None, Option(help="How much to cut: a number, see `spcp tune`; or auto.", rich_help_panel=METHOD)
    ] = None,
    option: Options = [],  # noqa: B006
    epochs: Epochs = None,
    batch_size: BatchSize = None,
    lr: Rate = None,
    seed: Annotated[int, Option(help="Of weights, order and augmentation.", rich_help_panel=RUN)] = 0,
    precision: Precision = None,
    out: Annotated[
        Path | None, Option("--out", "-o", help="Folder of the run; default: runs/BENCHMARK-METHOD-SEED.")
    ] = None,
    alpha: Annotated[float, Option(help="Then flag at most this share of what is known.")] = 0.05,
) -> None:
    """Train a network, or go on training it, and calibrate it on its validation data.

    The same command continues a run that was stopped (Ctrl-C).

    [dim]spcp train                                            # SPCP on the embedded digits
    spcp train -b cifar10 -m logitnorm --rho-norm 0.5
    spcp train --id photos/ --ood-val none --network resnet18 --size 64
    spcp train --id photos/ --model mypackage.models:build[/dim]
    """
    own = own_data(known, ood, near, ood_val, size, label, flip, benchmark)
    options = settings(option)
    if rho_norm is not None and method == "plain":
        raise InputError("--rho-norm is for methods that bound contributions; plain training does not, choose spcp")
    folder = out or Path("runs") / f"{name_of(benchmark, known)}-{method}-{seed}"
    start = None if weights is None else str(weights.expanduser().resolve())
    check_alpha(alpha)
    with described(folder, own) as data:
        from ..training import train

        config = config_from(
            *(data or benchmark, folder if own else None, method, options, model, network, root),
            rho_norm=None if rho_norm is None else how_much(rho_norm),
            width=width,
            start=start,
            seed=seed,
            epochs=epochs,
            batch_size=batch_size,
            lr=lr,
            precision=precision,
        )
        note(f"network: {config.network}")
        if config.truncation.rho_norm and rho_norm is None:
            note(f"rho_norm: {config.truncation.rho_norm} by default; spcp tune would choose it on validation data")
        run = train(config, folder, benchmark=data)
    note(f"run: {folder}")
    calibrate_if_possible(run, alpha)


def how_much(text: str) -> float | str:
    """A number, or "auto"."""
    try:
        return text if text == "auto" else float(text)
    except ValueError as error:
        raise InputError(f"--rho-norm {text}: must be a number, or auto") from error


def check_alpha(alpha: float) -> None:
    """Before anything is trained."""
    if not 0 < alpha < 1:
        raise InputError(f"--alpha {alpha:g}: must lie between 0 and 1; 0.05 flags at most 5 % of what is known")


def name_of(benchmark: str | None, known: Path | None) -> str:
    """What folders are called after."""
    return known.resolve().stem if known else Path(benchmark or "digits").stem


def config_from(
    benchmark: str | Benchmark | None,
    described_in: Path | None,
    method: str,
    options: dict[str, Any],
    model: str | None,
    network: str | None,
    root: Path | None,
    **changes: Any,
) -> Config:
    """The settings of a run: the paper's for the benchmark, but for what was given."""
    import dataclasses

    from ..config import config_for
    from ..contributions import Truncation

    if model and network:
        raise InputError("--model and --network: give one of them")
    if model and model.endswith(".pt2"):
        raise InputError(f"--model {model}: an exported program cannot be trained; spcp adopt takes it as it is")
    changes |= {"network": model or network, "root": None if root is None else str(root)}
    changes |= {own.name: options.pop(own.name) for own in dataclasses.fields(Truncation) if own.name in options}
    given = {key: value for key, value in changes.items() if value is not None}
    config = config_for(benchmark or "digits", method, options=options, **given)
    if described_in is None:
        return config
    return dataclasses.replace(config, benchmark=str((described_in / "benchmark.toml").resolve()))


def calibrate_if_possible(run: Run, alpha: float) -> None:
    """Leave a detector in the run, if there is enough validation data."""
    from ..decision import FILE, calibrate_run

    folder = run.folder
    try:
        detector, own = calibrate_run(run, alpha=alpha)
    except InputError as error:
        print(f"spcp: not calibrated: {error}", file=sys.stderr)
        return
    note(f"validation accuracy {100 * own.features('val').accuracy():.1f} %")
    note(f"calibrated on {len(detector.sorted_scores)} validation samples: {folder / FILE}")
    note(f"try: spcp detect FILES... --run {folder}")


@command("tune", panel="Train")
def tune_command(
    benchmark: BenchmarkName = None,
    root: Root = None,
    known: Known = None,
    ood: Odd = [],  # noqa: B006
    near: Near = [],  # noqa: B006
    ood_val: OddVal = "none",
    size: Size = None,
    label: Label = None,
    flip: Flip = True,
    method: Method = "spcp",
    network: Network = None,
    model: Model = None,
    width: Width = None,
    option: Options = [],  # noqa: B006
    epochs: Epochs = None,
    batch_size: BatchSize = None,
    lr: Rate = None,
    precision: Precision = None,
    grid: Annotated[
        str, Option(help="Values of rho_norm; 0 is training without a bound.")
    ] = "0,0.1,0.2,0.3,0.4,0.5,1,2,3,5",
    seeds: Annotated[str, Option(help="Seeds to train with; the mean over them counts.")] = "0",
    out: Annotated[
        Path | None, Option("--out", "-o", help="Folder for the runs; default: runs/BENCHMARK-METHOD-tune.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Choose rho_norm by the paper's rule: ID validation against OOD validation, or noise where there is none.

    One training for each value of the grid; runs that are done are not repeated.

    [dim]spcp tune -b digits --seeds 0,1,2
    spcp tune --id photos/ --size 64 --grid 0,0.1,0.5,1[/dim]
    """
    own = own_data(known, ood, near, ood_val, size, label, flip, benchmark)
    folder = out or Path("runs") / f"{name_of(benchmark, known)}-{method}-tune"
    chosen, values = whole_numbers(seeds, "--seeds"), numbers(grid, "--grid")
    with described(folder, own) as data:
        from ..tuning import run_folder, tune

        config = config_from(
            *(data or benchmark, folder if own else None, method, settings(option), model, network, root),
            width=width,
            epochs=epochs,
            batch_size=batch_size,
            lr=lr,
            precision=precision,
        )
        found = tune(config, folder, grid=values, seeds=chosen, benchmark=data)
    rows = []
    for value in dict.fromkeys(row["rho_norm"] for row in found.rows):
        (area, deviation), (accuracy, _) = found.over_seeds(value), found.over_seeds(value, "accuracy")
        row = {"rho_norm": value, "validation_auroc": 100 * area, "deviation": 100 * deviation}
        row |= {"validation_accuracy": 100 * accuracy}
        rows.append(row | {"chosen": "*" if value == found.best else ""})
    show(rows, as_json, f"AUROC of {found.score}: validation against {found.ood}, {len(chosen)} seed(s)")
    if found.best == 0:
        note("no bound is best here: plain training tells the odd validation data best")
    best = run_folder(folder, found.best, chosen[0])
    note(f"chosen: rho_norm {found.best:g}; to decide with its network: spcp calibrate {best}")


@command("adopt", panel="Train")
def adopt_command(
    model: Annotated[
        str, typer.Argument(help="package.module:function, which builds it, or model.pt2 of torch.export.")
    ],
    weights: Annotated[Path | None, Option(help="Its state dict as safetensors.")] = None,
    benchmark: BenchmarkName = None,
    root: Root = None,
    known: Known = None,
    ood: Odd = [],  # noqa: B006
    near: Near = [],  # noqa: B006
    ood_val: OddVal = "none",
    size: Size = None,
    label: Label = None,
    out: Annotated[Path, Option("--out", "-o", help="Folder of the run.")] = Path("runs/adopted"),
    alpha: Annotated[float, Option(help="Then flag at most this share of what is known.")] = 0.05,
) -> None:
    """Make a run of a model that is trained already, and calibrate it: eval, detect, patterns and report then work.

    [dim]spcp adopt mypackage.models:build --weights weights.safetensors --id photos/ --size 64
    spcp adopt model.pt2 -b cifar10[/dim]
    """
    own = own_data(known, ood, near, ood_val, size, label, True, benchmark)
    check_alpha(alpha)
    from ..data import load_benchmark
    from ..runs import adopt

    model = str(Path(model).expanduser().resolve()) if model.endswith(".pt2") else model
    with described(out, own) as data:
        data = data or load_benchmark(benchmark or "digits", root)
        named = str(Path(benchmark).resolve()) if benchmark and benchmark.endswith(".toml") else benchmark
        source = str((out / "benchmark.toml").resolve()) if own else named
        run = adopt(model, out, data, source=source, weights=weights, root=root)
    note(f"run: {out}")
    calibrate_if_possible(run, alpha)
