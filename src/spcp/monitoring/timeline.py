"""How a monitor is shown: a page with the timeline of each stream, and text for Prometheus."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from html import escape
from importlib import resources
from typing import Any

from .monitor import TENTHS, Monitor, Status, Window

SHOWN = 12  # streams with a picture, those with the most evidence
LISTED = 200  # streams in the table

_WIDTH, _LEFT, _RIGHT = 760.0, 64.0, 12.0
_HEIGHTS = (120.0, 100.0, 90.0)
_STYLE = """
svg text { fill: currentColor; font-size: 11px; }
.axis { stroke: var(--line); } .alarmed { fill: var(--near); opacity: .16; }
.band { fill: var(--id); opacity: .28; } .share { fill: none; stroke: var(--id); stroke-width: 1.6; }
.evidence { fill: none; stroke: var(--near); stroke-width: 1.6; }
.limit { stroke: currentColor; stroke-dasharray: 4 3; }
.cell { fill: var(--far); }
td:last-child { white-space: normal; min-width: 12rem; }
"""

_METRICS: Mapping[str, tuple[str, str, Callable[[Status], float]]] = {
    "inputs_total": ("counter", "Inputs seen.", lambda status: status.inputs),
    "flagged_total": ("counter", "Inputs flagged as OOD.", lambda status: status.flagged),
    "flagged_share": ("gauge", "Share of flagged inputs in the last window.", lambda status: status.window.share),
    "flagged_share_low": ("gauge", "Its exact 95 % interval: from.", lambda status: status.window.interval[0]),
    "flagged_share_high": ("gauge", "Its exact 95 % interval: to.", lambda status: status.window.interval[1]),
    "log10_evidence": ("gauge", "Evidence of a change; 2 is 100 to 1.", lambda status: status.log10_evidence),
    "alarm": ("gauge", "Whether there is an alarm.", lambda status: status.alarm),
    "alarms_total": ("counter", "Alarms so far.", lambda status: status.alarms),
}


def page(monitor: Monitor, events: Sequence[Mapping[str, Any]] = (), title: str = "Monitor") -> str:
    """Return a page that needs nothing from outside: the verdict, the timelines with the most evidence, and events."""
    order = sorted(map(monitor.status, monitor.streams), key=lambda status: (-status.alarm, -status.log10_evidence))
    alarmed = [status for status in order if status.alarm]
    seen = sum(status.inputs for status in order)
    verdict = (
        f"Alarm in {len(alarmed)} of {len(order)} streams."
        if alarmed and len(order) > 1
        else f"Alarm: a change since input {alarmed[0].since}."
        if alarmed
        else "No alarm."
    )
    promise = (
        f"{seen} inputs. While inputs are like the calibration data, the probability that a stream ever raises an "
        f"alarm is at most {100 * monitor.alpha:g} %, on average over calibration sets."
    )
    parts = [f"<header><p class=brand>spcp monitor</p><h1>{escape(title)}</h1><p class=lead>{verdict}</p>"]
    parts += [f"<p>{promise}</p></header><main>"]
    for status in order[:SHOWN]:
        name = escape(status.stream) or "Timeline"
        picture = timeline(monitor.timeline(status.stream), monitor.reference.alpha, monitor.alpha)
        parts += [f"<h2>{name}</h2><figure>{picture}<figcaption>{_caption(status)}</figcaption></figure>"]
    if len(order) > 1:
        parts += ["<h2>Streams</h2>", _table(map(_row, order[:LISTED]))]
    if events:
        parts += ["<h2>Events</h2>", _table(list(events)[::-1])]
    style = resources.files("spcp").joinpath("report/page.css").read_text(encoding="utf-8") + _STYLE
    head = '<meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">'
    head += (
        f'<meta name="color-scheme" content="light dark"><title>{escape(title)}</title><link rel="icon" href="data:,">'
    )
    body = "".join(parts) + "</main>"
    return f'<!doctype html>\n<html lang="en"><head>{head}<style>{style}</style></head>\n<body>{body}</body></html>\n'


def prometheus(monitor: Monitor) -> str:
    """Return how all streams stand, as text that Prometheus reads."""
    rows = [
        (stream.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n"), monitor.status(stream))
        for stream in monitor.streams
    ]
    lines = []
    for name, (kind, about, value) in _METRICS.items():
        lines += [f"# HELP spcp_monitor_{name} {about}", f"# TYPE spcp_monitor_{name} {kind}"]
        lines += [f'spcp_monitor_{name}{{stream="{stream}"}} {value(status):.9g}' for stream, status in rows]
    return "\n".join(lines) + "\n"


def timeline(windows: Sequence[Window], flagged: float, alpha: float) -> str:
    """Draw the share of flagged inputs with its interval, the evidence with the limit, and the p-values, as SVG."""
    end = max((window.start + window.inputs for window in windows), default=1)
    top = 8.0
    drawn = []
    highest = max([2 * flagged, *(window.interval[1] for window in windows if window.inputs >= 20)], default=1)
    limit = -math.log10(alpha)
    least, most = min([0.0, *(window.log10_evidence for window in windows)]), 3 * limit  # more is drawn as that

    def x(at: float) -> float:
        return _LEFT + (_WIDTH - _LEFT - _RIGHT) * at / end

    def y(panel: int, value: float, low: float, high: float) -> float:
        return top + sum(_HEIGHTS[: panel + 1]) + 26 * panel - _HEIGHTS[panel] * (min(value, high) - low) / (high - low)

    middles = [x(window.start + window.inputs / 2) for window in windows]
    for window in windows:
        if window.alarm:
            box = (
                x(window.start),
                top,
                x(window.start + window.inputs) - x(window.start),
                y(1, least, least, most) - top,
            )
            drawn.append(_rectangle("alarmed", *box))
    band = [(at, y(0, window.interval[1], 0, highest)) for at, window in zip(middles, windows, strict=True)]
    band += [(at, y(0, w.interval[0], 0, highest)) for at, w in zip(middles[::-1], windows[::-1], strict=True)]
    drawn.append(f'<polygon class="band" points="{_points(band)}"/>')
    shares = [(at, y(0, window.share, 0, highest)) for at, window in zip(middles, windows, strict=True)]
    evidence = [(x(window.start + window.inputs), y(1, window.log10_evidence, least, most)) for window in windows]
    drawn += [f'<polyline class="share" points="{_points(shares)}"/>']
    drawn += [f'<polyline class="evidence" points="{_points([(x(0), y(1, 0, least, most)), *evidence])}"/>']
    for panel, value, low, high in ((0, flagged, 0.0, highest), (1, limit, least, most)):
        at = y(panel, value, low, high)
        drawn.append(f'<line class="limit" x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{at:.1f}" y2="{at:.1f}"/>')
    for window in windows:
        for i, count in enumerate(window.p_values):
            strength = min(1.0, TENTHS * count / max(window.inputs, 1) / 3)  # three times as many as expected: full
            left, upper = x(window.start), y(2, (i + 1) / TENTHS, 0, 1)
            size = x(window.start + window.inputs) - left, _HEIGHTS[2] / TENTHS
            drawn.append(_rectangle("cell", left, upper, *size, f' opacity="{strength:.2f}"'))
    labels = [(0, 0.0, "0 %"), (0, highest, f"{100 * highest:.3g} %"), (0, flagged, f"{100 * flagged:.3g} %")]
    marks = [(y(panel, value, 0, highest), text) for panel, value, text in labels]
    marks += [(y(1, i * limit, least, most), f"{alpha**-i:.3g}") for i in (0, 1, 3)]
    marks += [(y(2, value, 0, 1), f"{value:g}") for value in (0, 0.5, 1)]
    drawn += [f'<text x="{_LEFT - 6}" y="{at + 4:.1f}" text-anchor="end">{text}</text>' for at, text in marks]
    titles = ("flagged, with its exact 95 % interval", "evidence of a change, and the limit", "p-values")
    for panel, text in enumerate(titles):
        low = y(panel, 0, 0, 1)
        drawn.append(f'<line class="axis" x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{low:.1f}" y2="{low:.1f}"/>')
        drawn.append(f'<text x="{_LEFT}" y="{low + 15:.1f}">{text}</text>')
    bottom = y(2, 0, 0, 1) + 15
    drawn.append(f'<text x="{_WIDTH - _RIGHT}" y="{bottom:.1f}" text-anchor="end">{end} inputs</text>')
    label = "share of flagged inputs, evidence of a change, and p-values over the inputs"
    return f'<svg viewBox="0 0 {_WIDTH:g} {bottom + 8:.0f}" role="img" aria-label="{label}">{"".join(drawn)}</svg>'


def _points(points: Iterable[tuple[float, float]]) -> str:
    return " ".join(f"{x:.1f},{y:.1f}" for x, y in points)


def _rectangle(kind: str, x: float, y: float, width: float, height: float, more: str = "") -> str:
    return f'<rect class="{kind}" x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}"{more}/>'


def _caption(status: Status) -> str:
    window, (low, high) = status.window, status.window.interval
    text = f"{status.flagged} of {status.inputs} inputs were flagged; of the last {window.inputs} counted, "
    text += f"{100 * window.share:.2g} % ({100 * low:.2g} to {100 * high:.2g} %). "
    return text + ("There is an alarm." if status.alarm else "There is no alarm.") + f" Alarms so far: {status.alarms}."


def _row(status: Status) -> dict[str, Any]:
    low, high = status.window.interval
    share = f"{100 * status.window.share:.2f} ({100 * low:.2f} to {100 * high:.2f})"
    since = "" if status.since is None else status.since
    row = {"stream": status.stream, "inputs": status.inputs, "flagged, %": share, "alarm since": since}
    return row | {"log10 of the evidence": f"{status.log10_evidence:.2f}", "alarms": status.alarms}


def _table(rows: Iterable[Mapping[str, Any]]) -> str:
    rows = list(rows)
    head = "".join(f"<th>{escape(str(key))}</th>" for key in rows[0])
    lines = ("".join(f"<td>{escape(_text(value))}</td>" for value in row.values()) for row in rows)
    return (
        f"<div class=scroll><table><thead><tr>{head}</tr></thead><tbody>"
        + "".join(f"<tr>{line}</tr>" for line in lines)
        + "</tbody></table></div>"
    )


def _text(value: Any) -> str:
    return f"{value:.2f}" if isinstance(value, float) else str(value)
