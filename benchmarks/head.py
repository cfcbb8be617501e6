"""What the SPCP head costs, beside the linear layer it replaces and beside a dense step.

    python benchmarks/head.py [--check]

A training step of the head is: estimate the quantile of every sample of the batch, move the threshold, forward,
backward (by features, weights and bias). The dense step is written from the released algorithm: the B x D x K
product, torch.quantile, clamp, sum. Memory is the growth of the process's peak resident size over what it was with
the inputs made, each step in a separate process.
"""

from __future__ import annotations

import argparse
import copy
import json
import statistics
import subprocess
import sys
from collections.abc import Callable

import torch
from timing import finish, interleaved, machine, ratio
from torch import nn

from spcp import SPCPLinear, Truncation, contribution_quantile
from spcp.contributions import native

# (batch, D, K), the paper's rho_norm, and the aims: at most so many times nn.Linear; so many times the dense step.
SHAPES = [
    (128, 512, 10, 3.0, 10, 20),
    (128, 512, 100, 0.5, 4, 50),
    (256, 512, 200, 0.4, 3, 100),
    (256, 2048, 1000, 0.4, 3, 200),
    (64, 1024, 21843, 0.4, 3, None),  # the dense step would take 45 GB
]
INFERENCE_AIM = 2.0
MEMORY_SHAPE, MEMORY_AIM = (256, 2048, 1000, 0.4), 1.5
STEPS = ("linear", "spcp", "dense")


def make(batch: int, D: int, K: int, rho_norm: float) -> dict[str, Callable[[], object]]:
    """Make training steps and inference of each kind on the same features, as of a ReLU network after pooling."""
    torch.manual_seed(0)
    h = torch.randn(batch, D, 8).relu_().mean(-1).requires_grad_()
    g = torch.randn(batch, K) / batch
    linear = nn.Linear(D, K)
    settled = contribution_quantile(h, linear.weight, 1 - rho_norm / K).mean().item()  # as in the midst of training
    head = SPCPLinear(D, K, truncation=Truncation(rho_norm, initial_threshold=settled))
    head.load_state_dict(linear.state_dict())

    def step(layer: nn.Module) -> None:
        layer.zero_grad()
        h.grad = None
        layer(h).backward(g)

    threshold = torch.tensor(settled)

    def dense() -> None:
        linear.zero_grad()
        h.grad = None
        c = h[:, None, :] * linear.weight  # (batch, K, D)
        # torch.quantile takes at most 2**24 numbers, so one sample at a time.
        tops = [torch.quantile(row, 1 - rho_norm / K) for row in c.detach().flatten(1)]
        threshold.mul_(0.999).add_(torch.stack(tops).mean(), alpha=0.001)
        (c.clamp(max=threshold.item()).sum(-1) + linear.bias).backward(g)

    frozen = copy.deepcopy(head).eval()

    def infer(layer: nn.Module) -> None:
        with torch.inference_mode():
            layer(h)

    return {
        "linear": lambda: step(linear),
        "spcp": lambda: step(head),
        "dense": dense,
        "infer linear": lambda: infer(linear),
        "infer spcp": lambda: infer(frozen),
    }


def parts(seconds: float) -> None:
    """Print where the time of a step goes: each part as a multiple of a whole step of nn.Linear."""
    names = ("quantile", "forward", "backward", "of which GEMMs")
    print(f"{'(batch, D, K), rho_norm':<26}" + "".join(f"{name:>16}" for name in names))
    for batch, D, K, rho_norm, *_ in SHAPES:
        linear = make(batch, D, K, rho_norm)["linear"]
        torch.manual_seed(0)
        h, g = torch.randn(batch, D, 8).relu_().mean(-1), torch.randn(batch, K) / batch
        layer = nn.Linear(D, K).requires_grad_(False)
        W, b, level = layer.weight, layer.bias, 1 - rho_norm / K
        lam = contribution_quantile(h, W, level).mean()
        work: list[Callable[[], object]] = [
            linear,
            lambda h=h, W=W, level=level: contribution_quantile(h, W, level),  # type: ignore[misc]
            lambda h=h, W=W, b=b, lam=lam: torch.ops.spcp.clip(h, W, b, lam),  # type: ignore[misc]
            lambda h=h, W=W, g=g, lam=lam: torch.ops.spcp.clip_grad(g, h, W, lam, True, True),  # type: ignore[misc]
            lambda h=h, W=W, g=g: (g @ W, g.t() @ h),  # type: ignore[misc]
        ]
        base, *times = interleaved(work, seconds)
        print(
            f"({batch}, {D}, {K}), {rho_norm}".ljust(26) + "".join(f"{ratio(t, base):>15.2f}x" for t in times),
            flush=True,
        )


def memory(kind: str) -> float:
    """Return the megabytes that the peak grew by during a step; run in a separate process."""
    step = make(*MEMORY_SHAPE)[kind]
    before = peak(reset=True)
    step()
    return peak() - before


def peak(reset: bool = False) -> float:
    """Return the peak resident megabytes of this process since the last reset (Linux)."""
    if reset:
        with open("/proc/self/clear_refs", "w") as file:
            file.write("5")
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) for line in file if line.startswith("VmHWM")) / 1024


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="exit 1 when an aim is missed")
    parser.add_argument("--seconds", type=float, default=6, help="for each shape and kind of step")
    parser.add_argument("--parts", action="store_true", help="print where the time of a step goes instead")
    parser.add_argument("--memory", choices=STEPS, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.memory:
        print(json.dumps(memory(arguments.memory)))
        return

    if arguments.parts:
        print(f"{machine()}\n")
        parts(arguments.seconds)
        return

    print(f"{machine()}; compiled kernels: {'yes' if native.available() else 'NO'}\n")
    print(f"{'(batch, D, K), rho_norm':<26}{'nn.Linear':>11}{'SPCP':>11}{'SPCP/Linear':>13}{'aim':>6}"
          f"{'dense/SPCP':>12}{'aim':>6}{'inference':>11}{'aim':>6}")  # fmt: skip
    missed = []
    for batch, D, K, rho_norm, aim, dense_aim in SHAPES:
        steps = make(batch, D, K, rho_norm)
        linear, spcp = interleaved([steps["linear"], steps["spcp"]], arguments.seconds)
        infer_linear, infer_spcp = interleaved([steps["infer linear"], steps["infer spcp"]], arguments.seconds)
        slowdown, inference = ratio(spcp, linear), ratio(infer_spcp, infer_linear)
        name = f"({batch}, {D}, {K}), {rho_norm}"
        missed += [f"{name}: {slowdown:.2f}x of nn.Linear, aim {aim}"] * (slowdown > aim)
        missed += [f"{name}: inference {inference:.2f}x, aim {INFERENCE_AIM}"] * (inference > INFERENCE_AIM)
        against_dense = ""
        if dense_aim:
            dense, beside = interleaved([steps["dense"], steps["spcp"]], arguments.seconds)
            times = ratio(dense, beside)
            against_dense = f"{times:.0f}x"
            missed += [f"{name}: the dense step takes {times:.0f}x, aim {dense_aim}"] * (times < dense_aim)
        print(f"{name:<26}{statistics.median(linear) * 1e3:>8.2f} ms{statistics.median(spcp) * 1e3:>8.2f} ms"
              f"{slowdown:>12.2f}x{aim:>6}{against_dense:>12}{dense_aim or '':>6}"
              f"{inference:>10.2f}x{INFERENCE_AIM:>6g}",
              flush=True)  # fmt: skip

    if sys.platform == "linux":
        grown = {}
        for kind in STEPS:
            command = [sys.executable, __file__, "--memory", kind]
            grown[kind] = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
        times = grown["spcp"] / grown["linear"]
        megabytes = ", ".join(f"{kind} {grown[kind]:.0f} MB" for kind in STEPS)
        print(f"\npeak memory of a step at {MEMORY_SHAPE[:3]}: {megabytes}; SPCP/Linear {times:.2f}x, aim {MEMORY_AIM}")
        missed += [f"peak memory {times:.2f}x of nn.Linear, aim {MEMORY_AIM}"] * (times > MEMORY_AIM)
    finish(missed, arguments.check)


if __name__ == "__main__":
    main()
