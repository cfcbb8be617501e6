"""`spcp adopt`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from typer import Argument

from .app import command
from .options import Alpha, ScoreName, check_alpha, option
from .output import note
from .training import calibrate_if_possible, warn_of_too_few
from .user_data import DESCRIPTION, DataOptions


@command("adopt", panel="Train")
def adopt_command(
    model: Annotated[
        str, Argument(help="package.module:function, which builds it; hf:FOLDER, timm:NAME or torchvision:NAME.")
    ],
    data: DataOptions,
    weights: Annotated[Path | None, option("Its state dict as safetensors.")] = None,
    out: Annotated[Path, option("Folder of the run.", "--out", "-o")] = Path("runs/adopted"),
    alpha: Alpha = 0.05,
    score: ScoreName = None,
) -> None:
    """Make a run of a model that is already trained, and calibrate it: eval, detect, patterns and report then work.

    [dim]spcp adopt mypackage.models:build --weights weights.safetensors --id photos/ --size 64
    spcp adopt hf:my-vit/ --id photos/                                # a folder of save_pretrained[/dim]
    """
    check_alpha(alpha)
    with data.described_in(out, network=model) as benchmark:
        from ..data import load_benchmark
        from ..runs import adopt

        benchmark = benchmark or load_benchmark(data.benchmark or "digits", data.root)
        warn_of_too_few(benchmark, alpha)
        source = DESCRIPTION if data.id_ else data.source(out)
        run = adopt(model, out, benchmark, source=source, weights=weights, root=data.root)
    note(f"run: {out}")
    calibrate_if_possible(run, alpha, score, benchmark=benchmark)
