"""The pages in a real browser: Debian's Chromium, driven headless."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import others
import pytest

from .conftest import Server, picture

pytestmark = pytest.mark.skipif(others.CHROMIUM is None, reason="there is no browser: apt-get install chromium")


@pytest.fixture(params=[(1440, "light"), (375, "dark")], ids=["desk", "phone"])
def page(browser: Any, server: Server, request: pytest.FixtureRequest) -> Iterator[Any]:
    width, scheme = request.param
    tab = browser.new_page(viewport={"width": width, "height": 800}, color_scheme=scheme)
    problems: list[str] = []
    tab.on("pageerror", lambda error: problems.append(str(error)))
    tab.on("request", lambda asked: problems.append(asked.url) if is_elsewhere(asked.url, server) else None)
    tab.goto(server.url)
    yield tab
    assert problems == []  # neither errors nor requests to others
    tab.close()


def is_elsewhere(url: str, server: Server) -> bool:
    return not url.startswith((server.url, "blob:", "data:"))


def overflows(page: Any) -> list[str]:
    found: list[str] = page.evaluate("""() => [...document.querySelectorAll("body *")].filter((node) => {
        const box = node.getBoundingClientRect();
        if (!box.width || node.closest(".scroll, pre, .skip, #drop input")) return false;
        return box.right > innerWidth + 1 || box.left < -1;
    }).map((node) => node.outerHTML.slice(0, 80))""")
    return found


def test_a_picture_is_classified_and_the_verdict_explained(page: Any, tmp_path: Path) -> None:
    (tmp_path / "sky.png").write_bytes(picture((90, 90, 250)))
    (tmp_path / "fog.png").write_bytes(picture((120, 100, 70)))
    page.set_input_files("input", [tmp_path / "sky.png", tmp_path / "fog.png"])
    page.wait_for_selector("#results li.ood")
    fog, sky = page.locator("#results li").all()  # the latest first
    assert (sky.locator("h2").inner_text(), fog.locator("h2").inner_text()) == ("ID blue", "OOD perhaps green")
    assert "is not below the threshold, 0.5, under which at most 5 % of in-distribution" in sky.inner_text()
    assert "is below the threshold, 0.5" in fog.inner_text()
    assert "of the 99 calibration samples score as low" in fog.inner_text()
    assert sky.locator(".share meter").count() == 3
    assert sky.locator("img").evaluate("image => image.naturalWidth") == 8
    assert overflows(page) == []


def test_a_picture_can_be_dropped(page: Any) -> None:
    page.evaluate(
        """(bytes) => {
            const data = new DataTransfer();
            data.items.add(new File([new Uint8Array(bytes)], "<b>dropped</b>.png"));
            document.body.dispatchEvent(new DragEvent("dragover", { dataTransfer: data, bubbles: true }));
            document.body.dispatchEvent(new DragEvent("drop", { dataTransfer: data, bubbles: true }));
        }""",
        list(picture((250, 100, 60))),
    )
    page.wait_for_selector("#results li.id")
    assert page.locator("#results h2").inner_text() == "ID red"
    assert page.locator("#results .file").inner_text() == "<b>dropped</b>.png"


def test_what_is_wrong_with_a_file_is_shown(page: Any, tmp_path: Path) -> None:
    (tmp_path / "notes.png").write_bytes(b"none")
    page.set_input_files("input", [tmp_path / "notes.png"])
    page.wait_for_selector("#results li.problem")
    assert "not a readable image" in page.locator("#results li").inner_text()


def test_the_page_for_programs(page: Any, server: Server) -> None:
    page.get_by_role("link", name="How programs ask").click()
    page.wait_for_selector("table")
    headings = page.locator("h2").all_inner_texts()
    assert headings[:3] == ["POST /detect", "GET /health", "GET /metrics"]
    assert f"curl {server.url}/detect --data-binary @photo.jpg" in page.locator("pre").inner_text()
    assert overflows(page) == []


def test_both_schemes_have_their_colours(page: Any, request: pytest.FixtureRequest) -> None:
    dark = "phone" in request.node.name
    background = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert background == ("rgb(20, 23, 28)" if dark else "rgb(255, 255, 255)")
