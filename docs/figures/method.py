"""Draw docs/method.svg: what the logit of one class is made of, what is truncated, and how the threshold moves.

python docs/figures/method.py [PICTURE]

A small network learns scikit-learn's digits by SPCP, in seconds, always the same. Numbers may differ in the last digits
from one machine to another.
"""

from __future__ import annotations

import sys
from pathlib import Path

import matplotlib as mpl
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from sklearn.datasets import load_digits
from torch import Tensor, nn

from spcp import Explanation, apply_spcp, explain, find_classifier

EPOCHS, BATCH, RHO_NORM = 20, 32, 1.0
BLUE, ORANGE, GREY = "#3b6ea8", "#e07b39", "#8a8a8a"


def main(picture: str | Path = Path(__file__).parent.parent / "method.svg") -> None:
    """Train, explain one digit, draw."""
    torch.set_num_threads(1)
    mpl.rcParams |= {
        "svg.hashsalt": "spcp",
        "svg.fonttype": "none",
        "font.size": 9,
        "axes.spines.top": False,
        "axes.spines.right": False,
    }
    x, y = (torch.tensor(array) for array in load_digits(return_X_y=True))
    x = x.float() / 16  # (1797, 64) in [0, 1]
    model, scaled = train(x[:1000], y[:1000])
    _, slow = train(x[:1000], y[:1000], beta=0.999)
    figure = Figure(figsize=(9, 3.2), layout="constrained")
    left, right = figure.subplots(1, 2, width_ratios=(3, 2))
    draw_contributions(left, explain(model, x[1000:1001])[0])
    draw_threshold(right, scaled, slow)
    figure.savefig(picture, metadata={"Date": None}, facecolor="white")


def train(x: Tensor, y: Tensor, beta: float | None = None) -> tuple[nn.Module, list[float]]:
    """Train a network; return it and its threshold after each step."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 10))
    steps = EPOCHS * -(-len(x) // BATCH)
    apply_spcp(model, RHO_NORM, total_steps=steps, beta=beta)
    _, head = find_classifier(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, nesterov=True, weight_decay=5e-4)
    thresholds = []
    for _ in range(EPOCHS):
        for batch in torch.randperm(len(x)).split(BATCH):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x[batch]), y[batch]).backward()
            optimizer.step()
            thresholds.append(float(head.threshold))  # type: ignore[arg-type]
    return model, thresholds


def draw_contributions(axes: Axes, shown: Explanation) -> None:
    """Draw the contributions to the predicted class, from the largest on: what stays, and what is truncated."""
    c = shown.contributions[shown.features].numpy()  # (D,) falling
    places = range(1, len(c) + 1)
    kept = c.clip(max=shown.threshold)
    axes.fill_between(places, kept, step="mid", color=BLUE, linewidth=0, label="stays")
    axes.fill_between(places, kept, c, step="mid", color=ORANGE, linewidth=0, label="is truncated")
    axes.axhline(shown.threshold, color=GREY, linewidth=1)
    axes.annotate("threshold", (len(c), shown.threshold), (0, 3), textcoords="offset points", ha="right", color=GREY)
    axes.set(xlabel="features d, the largest contribution first", ylabel="W[k,d] h[d]", xlim=(0, len(c) + 1))
    axes.set_title(f"The {len(c)} contributions to the logit of class {shown.prediction}, for one digit", loc="left")
    axes.legend(frameon=False)


def draw_threshold(axes: Axes, scaled: list[float], slow: list[float]) -> None:
    """Draw how the threshold comes down from 1000."""
    axes.semilogy(scaled, color=BLUE, label="total_steps is given")
    axes.semilogy(slow, color=ORANGE, label="beta = 0.999, as in a long run")
    axes.set(xlabel="training step", ylabel="threshold", xlim=(0, len(scaled)))
    axes.set_title("How the threshold comes down", loc="left")
    axes.legend(frameon=False)


if __name__ == "__main__":
    main(*sys.argv[1:])
