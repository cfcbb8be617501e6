"""The page in a real browser: Debian's Chromium, driven headless."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import others
import pytest

from .test_report import data, runs, study, written  # noqa: F401  (fixtures)

pytestmark = [
    pytest.mark.skipif(others.CHROMIUM is None, reason="there is no browser: apt-get install chromium"),
    pytest.mark.filterwarnings("ignore:.*SPCP.*:UserWarning"),
]


@pytest.fixture(params=[(1440, "light"), (375, "dark")], ids=["desk", "phone"])
def page(browser: Any, written: Path, request: pytest.FixtureRequest) -> Iterator[Any]:  # noqa: F811
    width, scheme = request.param
    tab = browser.new_page(viewport={"width": width, "height": 800}, color_scheme=scheme)
    problems: list[str] = []
    tab.on("console", lambda message: problems.append(message.text))
    tab.on("pageerror", lambda error: problems.append(str(error)))
    tab.on("request", lambda asked: problems.append(asked.url) if asked.url.startswith(("http", "ws")) else None)
    tab.goto((written / "report.html").as_uri())
    yield tab
    assert problems == []  # neither errors nor requests, whatever was clicked
    tab.close()


def flagged(panel: Any) -> dict[str, float]:
    rows = panel.locator("tbody tr").all()
    return {row.get_attribute("data-role"): float(row.locator(".flagged").inner_text()) for row in rows}


def test_nothing_overflows(page: Any) -> None:
    wide = """() => [...document.querySelectorAll("body *")].filter((node) => {
        const box = node.getBoundingClientRect();
        if (!box.width || node.closest(".scroll, pre, .skip, svg")) return false;
        return box.right > innerWidth + 1 || box.left < -1;
    }).map((node) => node.outerHTML.slice(0, 80))"""
    assert page.evaluate(wide) == []
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")


def test_it_starts_at_the_calibrated_threshold_and_agrees_with_the_csv(page: Any, written: Path) -> None:  # noqa: F811
    rows = [
        row
        for row in csv.DictReader((written / "operating.csv").read_text().splitlines())
        if (row["seed"], row["alpha"]) == ("0", "0.05")
    ]
    for score in ("energy", "knn"):
        page.select_option("#score", score)
        for i, arm in enumerate(("plain", "SPCP (rho_norm 1)")):
            expected = {r["set"]: 100 * float(r["flagged"]) for r in rows if (r["arm"], r["score"]) == (arm, score)}
            assert flagged(page.locator(".panel").nth(i)) == pytest.approx(expected, abs=0.006)


def test_the_slider_and_the_line_move_the_threshold(page: Any) -> None:
    panel = page.locator(".panel").first
    before = flagged(panel)
    slider = panel.locator("input[type=range]")
    slider.focus()
    slider.press("End")  # by keyboard
    assert all(share >= 99 for share in flagged(panel).values())
    slider.press("Home")
    low = flagged(panel)
    assert all(share <= 5 for share in low.values())
    panel.locator("svg .grab").scroll_into_view_if_needed()
    box = panel.locator("svg .grab").bounding_box()
    page.mouse.move(box["x"] + 0.2 * box["width"], box["y"] + box["height"] / 2)
    page.mouse.down()
    page.mouse.move(box["x"] + 0.8 * box["width"], box["y"] + box["height"] / 2)
    page.mouse.up()
    assert flagged(panel)["test"] > low["test"]
    passed = [float(cell.inner_text()) for cell in panel.locator(".passed").all()]
    assert [100 - share for share in passed] == pytest.approx(list(flagged(panel).values()), abs=0.02)
    page.click("#reset")
    assert flagged(panel) == before


def test_the_line_flags_what_lies_left_of_it(page: Any, written: Path, study: Any) -> None:  # noqa: F811
    """At any threshold, not only at calibrated ones."""
    panel = page.locator(".panel").nth(1)
    panel.locator("input[type=range]").evaluate(
        "slider => { slider.value = 700; slider.dispatchEvent(new Event('input')); }"
    )
    threshold = float(panel.locator("output").get_attribute("data-exact"))
    scores = study.arms[1].runs[0].table.scores
    for role, share in flagged(panel).items():
        assert share == pytest.approx((scores["energy", role] < threshold).double().mean().item() * 100, abs=0.006)


def test_tables_sort(page: Any) -> None:
    table = page.locator("#table-auroc")
    head = table.locator("thead th").nth(2)
    head.locator("button").click()
    assert head.get_attribute("aria-sort") == "ascending"
    values = [float(cell.get_attribute("data-value")) for cell in table.locator("tbody tr td:nth-child(3)").all()]
    assert values == sorted(values)
    head.locator("button").press("Enter")
    values = [float(cell.get_attribute("data-value")) for cell in table.locator("tbody tr td:nth-child(3)").all()]
    assert values == sorted(values, reverse=True)
    best = table.locator("tbody tr").first.locator("td:nth-child(3)")
    assert "best" in best.get_attribute("class")


def test_roc_follows_the_choice(page: Any) -> None:
    first = page.locator("#rocchart path").first.get_attribute("d")
    page.select_option("#rocset", label="dark (far)")
    assert page.locator("#rocchart path").first.get_attribute("d") != first
    assert page.locator("#rocchart circle").count() == 2


def test_pictures_have_words_and_all_can_be_reached(page: Any) -> None:
    assert page.locator("img:not([alt])").count() == 0
    assert page.locator("svg[role=img]:not([aria-label])").count() == 0
    ids = page.evaluate("[...document.querySelectorAll('[id]')].map((node) => node.id)")
    assert len(ids) == len(set(ids))
    for selector in ("#score", "#rocset", "#reset", ".panel input", ".scroll[role=region]", "th button"):
        control = page.locator(selector).first
        control.focus()
        assert control.evaluate("node => node === document.activeElement"), selector
