"""How soon a monitor finds a change, beside a binomial test of the flagged share in windows.

    python benchmarks/monitoring.py [--check] [--draw] [--streams 100]

Streams are simulated: ID scores are normal, OOD scores normal about a lower mean, by which the AUROC is 0.90 or 0.99.
Each stream has a calibration set of its own, of 5000 samples, and changes after 5000 inputs: to a share of OOD inputs,
or to larger scores, as those of darkened images. The delay counts inputs from there. Both tests raise a false alarm in
at most 1 % of clean streams of 25 000 inputs. For the monitor that is proven; the level of the binomial test, which is
two-sided and knows nothing of the calibration set's chance, is set by simulation to the largest with which it holds.

Prints the tables of docs/ship/monitor.md; --draw writes docs/ship/monitor.svg. Aims: the monitor keeps its promise, and
finds every change of which 10 % are OOD, or by which scores are larger by half a deviation, in all streams.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from timing import finish, machine

from spcp.monitoring import Monitor
from spcp.report.figures import FAR, ID, INK, NEAR, OTHER, as_svg, axes_of
from spcp.tables import to_markdown

N, CLEAN, LATER, ALPHA = 5000, 5000, 20_000, 0.01
CALIBRATION, LARGE = (19, 100, 1000, N), 0.1  # of clean streams
FLAGGED = 0.05  # the detector's alpha
WINDOWS = (200, 1000, 5000)
MEANS = {"0.90": 1.812, "0.99": 3.290}  # by AUROC: the square root of 2 times the normal quantile
SHARES = (0.01, 0.05, 0.10, 0.30)
LARGER = (0.5, 1.2)  # the flagged share falls to 1.6 % and to 0.2 %
CHANGES = [("OOD", auroc, share) for auroc in MEANS for share in SHARES] + [("larger", "", by) for by in LARGER]
Change = tuple[str, str, float]
Delays = Mapping[tuple[str, Change], np.ndarray]  # of each stream; inf: not found, nan: a false alarm before


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="exit 1 when an aim is missed")
    parser.add_argument("--draw", action="store_true", help="write docs/ship/monitor.svg")
    parser.add_argument("--streams", type=int, default=100, help="simulated for each change")
    options = parser.parse_args()
    rng = np.random.default_rng(0)
    print(machine(), "\n")
    levels = {window: level_of(window, rng) for window in WINDOWS}
    missed = [message for n in CALIBRATION for message in clean(n, 5 * options.streams, rng)]
    print()
    delays: dict[tuple[str, Change], np.ndarray] = {}
    for change in CHANGES:
        p = simulate(change, options.streams, rng)
        delays["monitor", change] = after(monitored(p))
        for window, level in levels.items():
            delays[f"window of {window}", change] = after(tested(p <= FLAGGED, window, level))
    print(table(delays))
    if options.draw:
        path = Path(__file__).parent.parent / "docs" / "ship" / "monitor.svg"
        path.write_text(draw(delays))
    aims = [("OOD", auroc, share) for auroc in MEANS for share in (0.1, 0.3)] + [("larger", "", by) for by in LARGER]
    missed += [f"{described(aim)}: not found everywhere" for aim in aims if np.isinf(delays["monitor", aim]).any()]
    finish(missed, options.check)


def clean(n: int, streams: int, rng: np.random.Generator) -> list[str]:
    """Count false alarms of streams without a change, at a larger alpha, so that there are some to count."""
    alarmed = np.isfinite(monitored(simulate(None, streams, rng, n), n, LARGE))
    said = f"{n} calibration samples: {100 * alarmed.mean():.1f} % of {streams} clean streams of {CLEAN + LATER} inputs"
    print(f"{said} raised an alarm; alpha is {100 * LARGE:g} %")
    return [said] if alarmed.mean() > LARGE + 3 * math.sqrt(LARGE / streams) else []


def simulate(change: Change | None, streams: int, rng: np.random.Generator, n: int = N) -> np.ndarray:
    """Return the p-values of streams, (S, T)."""
    p = np.empty((streams, CLEAN + LATER))
    for row in p:
        calibration, scores = np.sort(rng.normal(size=n)), rng.normal(size=len(row))
        if change is not None:
            kind, auroc, size = change
            later = scores[CLEAN:]
            later += size if kind == "larger" else -MEANS[auroc] * (rng.random(LATER) < size)
        row[:] = (1 + np.searchsorted(calibration, scores)) / (n + 1)
    return p


def monitored(p: np.ndarray, n: int = N, alpha: float = ALPHA) -> np.ndarray:
    """Return after how many inputs each stream raised its first alarm; inf: never."""
    first = np.full(len(p), np.inf)
    monitor = Monitor(n, alpha=alpha, streams=len(p))
    for start in range(0, p.shape[1], 1000):
        part = p[:, start : start + 1000]
        at = np.tile(np.arange(len(p)), part.shape[1])
        for event in monitor.update(part.T.ravel(), streams=at):
            if event.kind == "alarm":
                first[int(event.stream)] = min(first[int(event.stream)], event.input)
    return first


def tested(flagged: np.ndarray, window: int, level: float) -> np.ndarray:
    """Return at the end of which window the flagged share was significant; inf: never."""
    counts = flagged.reshape(len(flagged), -1, window).sum(2)  # a window begins with the change
    significant = (p_of(window) <= level)[counts]
    return np.where(significant.any(1), (1.0 + significant.argmax(1)) * window, np.inf)


def p_of(window: int) -> np.ndarray:
    """Return the two-sided p-value of each count of flagged inputs, by the binomial distribution."""
    count = np.arange(window + 1)
    ways = np.array([math.lgamma(window + 1) - math.lgamma(k + 1) - math.lgamma(window - k + 1) for k in count])
    chance = np.exp(ways + count * math.log(FLAGGED) + (window - count) * math.log1p(-FLAGGED))
    below, above = chance.cumsum(), chance[::-1].cumsum()[::-1]
    return np.minimum(1.0, 2 * np.minimum(below, above))


def level_of(window: int, rng: np.random.Generator, streams: int = 20_000) -> float:
    """Return the largest level with which at most alpha of clean streams raise an alarm."""
    k = round(FLAGGED * (N + 1))
    rate = rng.beta(k, N + 1 - k, streams)  # the flagged share of ID inputs, by the chance of the calibration set
    counts = rng.binomial(window, rate[:, None], (streams, (CLEAN + LATER) // window))
    least = np.sort(p_of(window)[counts].min(1))
    return float(np.nextafter(least[int(ALPHA * streams)], 0))


def after(first: np.ndarray) -> np.ndarray:
    return np.where(first > CLEAN, first - CLEAN, np.nan)


def described(change: Change) -> str:
    kind, auroc, size = change
    return f"{100 * size:g} % OOD, AUROC {auroc}" if kind == "OOD" else f"scores larger by {size:g}"


def table(delays: Delays) -> str:
    tests = ["monitor", *(f"window of {window}" for window in WINDOWS)]
    lines = [[described(change), *(shown(delays[test, change]) for test in tests)] for change in CHANGES]
    return to_markdown(["change", *tests], lines)


def shown(delays: np.ndarray) -> str:
    """The median and the 90 % quantile, and how many found it if not all did."""
    median, late = (f"{quantile(delays, q):.0f}".replace("inf", "-") for q in (0.5, 0.9))
    found = np.isfinite(delays[~np.isnan(delays)]).mean()
    return f"{median} ({late})" if found == 1 else f"{median} ({late}, {100 * found:.0f} % found)"


def quantile(delays: np.ndarray, q: float) -> float:
    """Return a delay that was seen, which may be infinite, of streams without a false alarm."""
    return float(np.quantile(delays[~np.isnan(delays)], q, method="inverted_cdf"))


def draw(delays: Delays) -> str:
    """Draw median delays over the share of OOD inputs, for light and dark pages."""
    tests = {"monitor": (ID, "o-")} | {
        f"window of {window}": (colour, style)
        for window, colour, style in zip(WINDOWS, (NEAR, FAR, OTHER), ("s--", "^-.", "D:"), strict=True)
    }
    with axes_of(1, 2, 8.0, 3.2, sharey=True) as (figure, axes):
        for axis, auroc in zip(axes[0], MEANS, strict=True):
            for name, (colour, style) in tests.items():
                middle = [quantile(delays[name, ("OOD", auroc, share)], 0.5) for share in SHARES]
                points = [(100 * share, y) for share, y in zip(SHARES, middle, strict=True) if math.isfinite(y)]
                axis.plot(*zip(*points, strict=True), style, color=colour, label=name, lw=1.5, ms=5)
            axis.set_xscale("log")
            axis.set_yscale("log")
            axis.set_xticks([100 * share for share in SHARES], [f"{100 * share:g}" for share in SHARES])
            axis.minorticks_off()
            axis.set_xlim(0.8, 38)
            axis.set_title(f"AUROC of the detector: {auroc}")
            axis.set_xlabel("OOD inputs after the change, %")
        axes[0][0].set_ylabel("inputs until the alarm (median)")
        axes[0][0].legend(frameon=False, fontsize=8)
    svg = as_svg(figure).replace(INK, "currentColor")
    style = "<style>svg{color:#1a1a1a}@media(prefers-color-scheme:dark){svg{color:#e6e6e6}}</style>"
    return svg.replace("<defs>", style + "<defs>", 1)


if __name__ == "__main__":
    main()
