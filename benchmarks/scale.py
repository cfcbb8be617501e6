"""How time and memory grow with the number of classes and of images.

    python benchmarks/scale.py [--check]
    python benchmarks/scale.py --write      # only the pages, from the numbers of the last run

Classes: a training step of the head (quantile of every sample, threshold, forward, backward) and inference, beside
`nn.Linear`, all numbers of classes in turn; the least time counts. Times are the process's CPU time with one thread, so
that other work on the machine does not count. Images: `fit` on N rows of features, and scoring N
rows with a detector that was fitted on 10 000; the rows are one shard over and over, so that nothing is spent on making
them. Memory is the growth of the process's peak in a call. Exponents are slopes of log(time) and log(memory) by least
squares over the last decade, from 10 000 classes and from 100 000 images on, where fixed costs no longer count; what
takes less than 8 MB counts as 8. Aim: at most 1.05.

Writes docs/scale/: scale.json, the numbers; scale.svg, the curves; the tables and the arithmetic of the page.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from memory import peak
from timing import finish, machine
from torch import nn
from torch.multiprocessing.spawn import spawn

from spcp import SPCPLinear, Truncation, contribution_quantile, data, scores
from spcp.bank import SHARD, FeatureBank
from spcp.files import written
from spcp.networks import resnet18_224
from spcp.tables import to_markdown

FOLDER = Path(__file__).parent.parent / "docs" / "scale"
AIM, LEAST_MB = 1.05, 8.0
BATCH, D, RHO_NORM, ROUNDS = 64, 768, 0.4, 3
CLASSES = (10, 100, 1000, 10_000, 21_843, 46_416, 100_000)
LAST_CLASSES, LAST_IMAGES = 10_000, 100_000  # from where on exponents are fitted
WIDE = (21_843, 2048)  # classes and features of a ResNet-50 on ImageNet-21k
IMAGES = (10_000, 31_623, 100_000, 316_228, 1_000_000)
SCORES: Mapping[str, type[scores.Score]] = {
    "energy": scores.Energy,
    "mds": scores.Mahalanobis,
    "consensus": scores.Consensus,
}
ROW_SIZE, ROW_CLASSES = 64, 100

Record = dict[str, Any]


# Classes


def steps_of(K: int, features: int) -> dict[str, Callable[[], object]]:
    """Make a training step and inference of `nn.Linear` and of the head, which share their weights."""
    torch.manual_seed(0)
    h = torch.randn(BATCH, features, 8).relu_().mean(-1).requires_grad_()
    g = torch.randn(BATCH, K) / BATCH
    linear = nn.Linear(features, K)
    rho_norm = min(RHO_NORM, K)
    settled = contribution_quantile(h, linear.weight, 1 - rho_norm / K).mean().item()
    head = SPCPLinear(features, K, truncation=Truncation(rho_norm, beta=0.999, initial_threshold=settled))
    head.weight, head.bias = linear.weight, linear.bias
    frozen = SPCPLinear(1, 1, truncation=Truncation(0.4)).eval()
    frozen.__dict__.update({**head.__dict__, "training": False})

    def clear() -> None:
        linear.zero_grad()
        h.grad = None

    def step(layer: nn.Module) -> None:
        clear()
        layer(h).backward(g)

    def infer(layer: nn.Module) -> None:
        with torch.inference_mode():
            layer(h)

    return {
        "linear": lambda: step(linear),
        "step": lambda: step(head),
        "infer linear": lambda: infer(linear),
        "infer": lambda: infer(frozen),
        "clear": clear,
    }


def measure_classes() -> list[Record]:
    shapes = [(K, D) for K in CLASSES] + [WIDE]
    work = [steps_of(*shape) for shape in shapes]
    best = [dict.fromkeys(steps, math.inf) for steps in work]
    for rounds in range(-1, ROUNDS):  # the first warms up
        for steps, own in zip(work, best, strict=True):
            for name, function in steps.items():
                took = seconds_of(function)
                own[name] = min(own[name], took if rounds >= 0 else math.inf)
    records = []
    for (K, features), steps, own in zip(shapes, work, best, strict=True):
        memory = {}
        for name in ("step", "infer"):
            steps["clear"]()  # or the memory of the last gradient would be used again
            memory[f"{name} MB"] = peak(steps[name])
        weights = 4 * K * (features + 1) / 2**20
        del own["clear"]
        records.append({"K": K, "D": features, "rounds": ROUNDS, "weights MB": weights, **own, **memory})
        show(records[-1])
        steps.clear()
    return records


def seconds_of(function: Callable[[], object], least: float = 0.02) -> float:
    """Seconds of a call; a short one is repeated, and the least counts."""
    best, end = math.inf, time.perf_counter() + least
    while best == math.inf or time.perf_counter() < end:
        best = min(best, once(function))
    return best


def once(function: Callable[[], object]) -> float:
    """CPU seconds of a call."""
    start = time.process_time()
    function()
    return time.process_time() - start


# Classes that several processes share


def measure_sharded() -> list[Record]:
    """Measure a training step of the head, K classes in one process and in two: memory and time of one process each."""
    records = []
    for world in (1, 2):
        with tempfile.TemporaryDirectory() as folder:
            spawn(one_process, (world, folder), nprocs=world)
            every = [json.loads((Path(folder) / f"{rank}.json").read_text()) for rank in range(world)]
        largest = {key: max(record[key] for record in every) for key in every[0]}
        records.append({"processes": world, **largest})
        show(records[-1])
    return records


def one_process(rank: int, world: int, folder: str) -> None:
    from torch.distributed.device_mesh import init_device_mesh

    from spcp.contributions.sharded import shard_classes

    torch.set_num_threads(1)
    os.environ.update(MASTER_ADDR="127.0.0.1", GLOO_SOCKET_IFNAME="lo")
    dist.init_process_group("gloo", init_method=f"file://{folder}/rendezvous", rank=rank, world_size=world)
    K, features = WIDE
    torch.manual_seed(0)
    h = torch.randn(BATCH, features, 8).relu_().mean(-1).requires_grad_()
    settled = Truncation(RHO_NORM, beta=0.999, initial_threshold=0.03)
    head = shard_classes(SPCPLinear(features, K, truncation=settled), init_device_mesh("cpu", (world,)))
    own = head.weight.to_local()  # type: ignore[attr-defined]
    y = torch.arange(BATCH)

    def clear() -> None:
        head.zero_grad()
        h.grad = None

    def step() -> None:
        clear()
        nn.functional.cross_entropy(head(h), y).backward()

    step()
    clear()
    memory = peak(step)
    sent: list[int] = []
    gather = dist.all_gather

    def counted(tensors: Any, tensor: torch.Tensor, *rest: Any) -> Any:
        sent.append(tensor.numel() * tensor.element_size())
        return gather(tensors, tensor, *rest)

    dist.all_gather = counted  # type: ignore[assignment]
    with torch.no_grad():
        head.estimate(h)
    dist.all_gather = gather
    record = {"weights MB": own.numel() * 4 / 2**20, "step MB": memory}
    record |= {"step": min(once(step) for _ in range(3))}
    record |= {"threshold": min(once(lambda: head.estimate(h.detach())) for _ in range(3))}
    record |= {"sent": sum(sent), "rounds": len(sent), "counting": 2 * BATCH * (1 << 16) * 4}
    (Path(folder) / f"{rank}.json").write_text(json.dumps(record))
    dist.barrier()
    os._exit(0)  # without the clean-up, in which gloo's threads now and then abort


# What scores keep


def measure_state() -> list[Record]:
    """Fit every score of features with K, 2 K and 4 K classes: how does what the number adds to it grow?"""
    kept: dict[str, list[int]] = {}
    for K in (64, 128, 256):
        torch.manual_seed(0)
        head = nn.Linear(32, K)
        head.weight.data *= 20  # so that every class is predicted
        y = torch.arange(2048) % K
        with torch.no_grad():
            h = head.weight[y] + 0.1 * torch.randn(2048, 32)
            bank = FeatureBank.of(h, head(h), y)
        for name in scores.SCORES:
            if name == "mos":  # has options that depend on a training method
                continue
            score = scores.build_score(name)
            if not score.needs_inputs:
                score.fit(bank, head).fit_held_out(bank, head)
                kept.setdefault(name, []).append(sum(buffer.numel() for buffer in score.buffers()))
    return [
        {"score": name, "kept": kept[name], "exponent": math.log2((many - some) / (some - few)) if some > few else 0.0}
        for name, (few, some, many) in kept.items()
    ]


# Images


def shard(rows: int, size: int, head: nn.Linear) -> FeatureBank:
    """Return a bank of so many rows: one shard over and over."""
    torch.manual_seed(1)
    y = torch.randint(ROW_CLASSES, (SHARD,))
    with torch.no_grad():
        h = (torch.randn(SHARD, size) + 2 * torch.randn(ROW_CLASSES, size)[y]).relu_()
        whole = FeatureBank.of(h, head(h), y)
    part = next(whole.parts())
    rest = [type(part)(*(tensor[: rows % SHARD] for tensor in part))] if rows % SHARD else []
    return FeatureBank([part] * (rows // SHARD) + rest)


def seconds_and_memory(function: Callable[[], object]) -> tuple[float, float]:
    times: list[float] = []
    memory = peak(lambda: times.append(once(function)))
    return times[0], memory


def fit(kind: type[scores.Score], bank: FeatureBank, head: nn.Linear) -> None:
    kind().fit(bank, head)


def measure_images() -> list[Record]:
    torch.manual_seed(0)
    head = nn.Linear(ROW_SIZE, ROW_CLASSES)
    records = []
    fixed = shard(10_000, ROW_SIZE, head)
    for name, kind in SCORES.items():
        fitted = kind().fit(fixed, head).fit_held_out(fixed, head)
        fitted.scores(fixed, head)
        for rows in IMAGES:
            bank = shard(rows, ROW_SIZE, head)
            record: Record = {"name": name, "rows": rows}
            record["fit"], record["fit MB"] = seconds_and_memory(partial(fit, kind, bank, head))
            record["score"], record["score MB"] = seconds_and_memory(partial(fitted.scores, bank, head))
            records.append(record)
            show(record)
    return records


# What else an image costs


def measure_rest() -> Record:
    """Measure what it takes to decode a photograph, and to pass it through a network and back, on one core."""
    from loading import write_photographs

    transform = data.BENCHMARKS["imagenet"].transform
    with tempfile.TemporaryDirectory() as folder:
        write_photographs(Path(folder), 64)
        loader = data.Loader(data.read_folder(folder), transform, batch_size=32, workers=0, cache=False)
        decode = min(seconds_of(lambda: [None for _ in loader], 0) for _ in range(2)) / 64
    network = resnet18_224(1000)
    x, y = torch.randn(8, 3, 224, 224), torch.arange(8)

    def infer() -> None:
        with torch.inference_mode():
            network(x)

    def train() -> None:
        network.zero_grad()
        nn.functional.cross_entropy(network(x), y).backward()

    infer()
    network.eval()
    forward = min(seconds_of(infer, 0) for _ in range(2)) / 8
    network.train()
    backward = min(seconds_of(train, 0) for _ in range(2)) / 8
    record = {"decode": decode, "network": forward, "network training": backward}
    show(record)
    return record


def show(record: Record) -> None:
    values = (f"{value:.4g}" if isinstance(value, float) else str(value) for value in record.values())
    print("  ".join(map(" ".join, zip(record, values, strict=True))), flush=True)


# Exponents


def exponents(measured: Record) -> dict[str, float]:
    """Return the slopes of log(time) and log(memory) over the last decade, by what grows."""
    last = [r for r in measured["classes"] if r["D"] == D and r["K"] >= LAST_CLASSES]
    found = {
        "classes: time of a training step": slope(last, "K", "step"),
        "classes: memory of a training step": slope(last, "K", "step MB"),
        "classes: time of inference": slope(last, "K", "infer"),
        "classes: time of a step of nn.Linear": slope(last, "K", "linear"),
    }
    for name in SCORES:
        own = [r for r in measured["images"] if r["name"] == name and r["rows"] >= LAST_IMAGES]
        for key, what in (("fit", "fitting"), ("score", "scoring")):
            if key == "fit" and name == "energy":
                continue  # it is not fitted
            found[f"images: time of {what}, {name}"] = slope(own, "rows", key)
            found[f"images: memory of {what}, {name}"] = slope(own, "rows", f"{key} MB")
    return found


def slope(records: Sequence[Record], of: str, key: str) -> float:
    x = np.log([record[of] for record in records])
    y = np.log([max(record[key], LEAST_MB) if "MB" in key else record[key] for record in records])
    return float(np.polyfit(x, y, 1)[0])


# The page


def write(measured: Record) -> None:
    """Write the tables, the curves and the arithmetic from what was measured."""
    for name, text in (
        ("scale.json", json.dumps(measured, indent=1) + "\n"),
        ("classes-table.md", classes_table(measured)),
        ("sharded-table.md", sharded_table(measured)),
        ("scores-table.md", scores_table(measured)),
        ("machines.md", machines(measured)),
        ("scale.svg", curves(measured)),
    ):
        FOLDER.mkdir(exist_ok=True)
        with written(FOLDER / name) as file:
            file.write(text.encode())


def classes_table(measured: Record) -> str:
    header = ["K", "D", "`nn.Linear`", "SPCP", "SPCP / Linear", "a class", "inference", "weights", "memory of a step"]
    lines = [
        [
            count(r["K"]),
            str(r["D"]),
            f"{1e3 * r['linear']:.3g} ms",
            f"{1e3 * r['step']:.3g} ms",
            f"{r['step'] / r['linear']:.2f}x",
            f"{1e6 * r['step'] / r['K']:.1f} us",
            f"{1e3 * r['infer']:.3g} ms",
            f"{r['weights MB']:.3g} MB",
            f"{r['step MB']:.3g} MB",
        ]
        for r in measured["classes"]
    ]
    return (
        f"Batches of {BATCH}, `rho_norm` {RHO_NORM}; the least of {measured['classes'][0]['rounds']} rounds, seed 0. "
        f"{measured['machine']}.\n\n{to_markdown(header, lines)}"
    )


def sharded_table(measured: Record) -> str:
    K, features = WIDE
    header = ["processes", "weights of each", "memory of a step", "a step", "of which threshold", "sent for it by each"]
    lines = [
        [
            str(r["processes"]),
            f"{r['weights MB']:.0f} MB",
            f"{r['step MB']:.0f} MB",
            f"{r['step']:.2f} s",
            f"{1e3 * r['threshold']:.0f} ms",
            f"{r['sent'] / 1e3:.0f} kB" if r["processes"] > 1 else "-",
        ]
        for r in measured["sharded"]
    ]
    counting = measured["sharded"][0]["counting"] / 1e6
    return (
        f"K = {count(K)}, D = {features}, batches of {BATCH}, cross-entropy of gathered logits; gloo, one thread a "
        f"process, CPU time of the slower process. To count bits instead, 65 536 counters twice for each sample, would "
        f"take {counting:.0f} MB. {measured['machine']}.\n\n{to_markdown(header, lines)}"
    )


def scores_table(measured: Record) -> str:
    groups: dict[int, list[str]] = {}
    for record in measured["state"]:
        groups.setdefault(round(record["exponent"]), []).append(record["score"])
    words = {0: "what does not depend on K", 1: "K times as much, or D K", 2: "K^2 numbers"}
    return to_markdown(
        ["what is kept", "scores"], [[words[power], ", ".join(names)] for power, names in sorted(groups.items())]
    )


def machines(measured: Record) -> str:
    """Write the arithmetic: every number follows from a measured one, which is named."""
    images = {(r["name"], r["rows"]): r for r in measured["images"]}
    each = {name: images[name, IMAGES[-1]]["score"] / IMAGES[-1] for name in SCORES}
    rest, top = measured["rest"], max(measured["exponents"].values())
    wide = next(r for r in measured["classes"] if (r["K"], r["D"]) == WIDE)
    K, features = WIDE

    a_day = 1e9
    rate = a_day / 86_400
    cores = {
        "decode a JPEG of 500 x 375 pixels": rest["decode"],
        "ResNet-18 at 224 pixels": rest["network"],
        **{f"{name}, D = {ROW_SIZE}, K = {ROW_CLASSES}": each[name] for name in ("consensus", "mds", "energy")},
    }
    table = to_markdown(
        ["of one image", "measured, one core", "cores for a billion a day"],
        [[name, f"{1e3 * t:.3g} ms", count(rate * t)] for name, t in cores.items()],
    )
    first = max(cores, key=lambda name: cores[name])
    share = 100 * each["consensus"] / (rest["decode"] + rest["network"] + each["consensus"])
    bank_row = 4 * (512 + 1000) + 16

    pictures = 14.2e6
    hours = {
        "decode": pictures * rest["decode"] / 3600,
        "ResNet-18 at 224 pixels, forward and backward": pictures * rest["network training"] / 3600,
        f"the head, K = {count(K)}, D = {features}": pictures / BATCH * wide["step"] / 3600,
        "the same, `nn.Linear`": pictures / BATCH * wide["linear"] / 3600,
    }
    training = to_markdown(
        ["of an epoch", "measured, one core, an image", "core hours"],
        [[name, f"{1e3 * 3600 * t / pictures:.3g} ms", count(t)] for name, t in hours.items()],
    )
    longest = max(hours, key=lambda name: hours[name])
    weights, step_mb = 4 * K * features / 1e6, wide["step MB"] * 2**20 / 1e6
    two = measured["sharded"][1]
    bank_tb = 4 * (K + features) * pictures / 1e12
    powers = to_markdown(
        ["what grows", "exponent"],
        [[n, f"{abs(x):.2f}" if abs(x) < 0.005 else f"{x:.2f}"] for n, x in measured["exponents"].items()],
    )
    return f"""## Many machines, on paper

There was one machine. What follows is arithmetic from what one core of it measured, in CPU time: {measured["machine"]}.
`python benchmarks/scale.py` measures it, and writes this section.

![Time and memory by the number of classes and of images, on logarithmic scales](scale.svg)

The exponents of the last decade (10 000 to 100 000 classes; 100 000 to 1 000 000 images) are at most {top:.2f}; the aim
is {AIM}. 1 is proportional, 0 is constant.

{powers}
### A billion images a day

That is {count(rate)} images a second. Each needs nothing of the others, so cores add up, as long as their inputs
reach them.

{table}
What breaks first: {first}. The score is {share:.2g} % of decoding, network and consensus together. What does not
break: memory, which `spcp detect` holds constant; the threshold, which is one number; the monitor, which is one
process a stream. A feature bank of everything must not be kept: {bank_row} bytes an image (D = 512, K = 1000) are
{a_day * bank_row / 1e12:.1f} TB a day. And a score that keeps a share of the training data (knn, nnguide, relation)
gets slower with every image that it is fitted on; an export can keep less of it (`--bank`).

### ImageNet-21k

21 841 classes, 14.2 million images.

{training}
What breaks first: {longest}. The head of D = {features} has {weights:.0f} MB of weights; with gradients and momentum
{3 * weights:.0f} MB, which one machine holds. A step needs {step_mb:.0f} MB beside the weights,
{step_mb / weights:.2f} times as much as they, of which the gradient is 1. Two processes hold
{two["weights MB"]:.0f} MB each and send {two["sent"] / 1e3:.0f} kB each for the threshold; the gradient of the features
is {4 * BATCH * features / 1e3:.0f} kB.

After training, a feature bank of all images would take {bank_tb:.2f} TB, {100 * K / (K + features):.0f} % of it logits;
fit on a part. KLM and fDBD keep K x K numbers: {4 * K * K / 1e9:.1f} GB here, {4 * 1e5**2 / 1e9:.0f} GB at 100 000
classes. The default consensus keeps D x D and K x D numbers.
"""


def count(n: float) -> str:
    return f"{n:,.0f}".replace(",", " ") if n >= 10 else f"{n:.2g}"


def curves(measured: Record) -> str:
    """Draw time and memory over classes and over images."""
    from spcp.report.figures import FAR, ID, NEAR, STYLES, as_svg, axes_of, for_both_schemes

    by_classes = [r for r in measured["classes"] if r["D"] == D]
    with axes_of(1, 3, 9.6, 3.0) as (figure, axes):
        time_axis, memory_axis, image_axis = axes[0]
        for key, label, colour, style in (
            ("linear", "nn.Linear, a step", NEAR, "--"),
            ("step", "SPCP, a step", ID, "-"),
            ("infer", "SPCP, inference", FAR, "-."),
        ):
            time_axis.plot([r["K"] for r in by_classes], [1e3 * r[key] for r in by_classes], style, color=colour,
                           marker="o", markersize=3, label=label)  # fmt: skip
        time_axis.set(title=f"Head, D = {D}, batch {BATCH}", xlabel="classes", ylabel="milliseconds")
        x = [r["K"] for r in by_classes]
        memory_axis.plot(x, [r["weights MB"] for r in by_classes], "--", color=NEAR, label="the weights")
        memory_axis.plot(x, [r["step MB"] for r in by_classes], "-", color=ID, marker="o", markersize=3,
                         label="SPCP, a step")  # fmt: skip
        memory_axis.set(title="Memory of a step", xlabel="classes", ylabel="MB")
        for name, colour, style in zip(SCORES, (FAR, NEAR, ID), STYLES, strict=False):
            own = [r for r in measured["images"] if r["name"] == name]
            image_axis.plot([r["rows"] for r in own], [r["score"] for r in own], style, color=colour, marker="o",
                            markersize=3, label=name)  # fmt: skip
        image_axis.set(title=f"Scoring, D = {ROW_SIZE}", xlabel="images", ylabel="seconds")
        for axis in axes[0]:
            axis.set_xscale("log")
            axis.set_yscale("log")
            axis.legend(frameon=False, fontsize=8)
    return for_both_schemes(as_svg(figure))


PARTS: Mapping[str, Callable[[], Any]] = {
    "classes": measure_classes,
    "sharded": measure_sharded,
    "images": measure_images,
    "state": measure_state,
    "rest": measure_rest,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="exit 1 when an aim is missed")
    parser.add_argument("--write", action="store_true", help="write the pages from the numbers that are there")
    parser.add_argument("--only", help="measure these parts, as classes,images, and keep the other numbers")
    options = parser.parse_args()
    kept = json.loads((FOLDER / "scale.json").read_text()) if options.write or options.only else {}
    if options.write:
        write(kept)
        return
    torch.set_num_threads(1)
    print(machine())
    measured: Record = {"machine": machine()}
    for part, measure in PARTS.items():
        wanted = part in (options.only or part).split(",")
        measured[part] = measure() if wanted else kept[part]
    measured["exponents"] = exponents(measured)
    print()
    for name, value in measured["exponents"].items():
        print(f"{name:<46}{value:>6.2f}")
    write(measured)
    finish([f"{n}: {value:.2f}, aim {AIM}" for n, value in measured["exponents"].items() if value > AIM], options.check)


if __name__ == "__main__":
    main()
