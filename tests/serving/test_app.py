"""The app without a server, for detectors of other kinds."""

from __future__ import annotations

import asyncio
import json
import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from spcp.errors import InputError
from spcp.serving import app as module
from spcp.serving.app import build_app
from spcp.serving.settings import Settings

from . import files
from .conftest import decoded, encoded, picture

JSON = "application/json"


def ask(file: Path, *requests: tuple[bytes, str], **settings: Any) -> list[tuple[int, Any]]:
    """Start the app, post requests at once, and stop it."""
    app = build_app(Settings(str(file), **settings))

    async def post(body: bytes, kind: str) -> tuple[int, Any]:
        sent: list[Any] = []
        scope = {"type": "http", "method": "POST", "path": "/detect", "query_string": b"", "http_version": "1.1"}
        scope |= {"headers": [(b"content-type", kind.encode())]}

        async def receive() -> dict[str, Any]:
            return {"type": "http.request", "body": body}

        async def send(message: Any) -> None:
            sent.append(message)

        await app(scope, receive, send)
        return sent[0]["status"], json.loads(sent[1]["body"])

    async def whole() -> list[tuple[int, Any]]:
        async with app.router.lifespan_context(app):
            return await asyncio.gather(*(post(*request) for request in requests))

    return asyncio.run(whole())


@pytest.mark.parametrize("kind", ["inside", "resized"])
def test_a_file_that_prepares_images_itself(tmp_path: Path, kind: str) -> None:
    """It gets the bytes as they are if it resizes, else those of the test transform; sizes may differ."""
    images = [picture((90, 90, 250), size) for size in ((8, 8), (12, 10), (8, 8), (300, 200))]
    answers = ask(files.write(tmp_path / "x.onnx", kind), *((image, "image/png") for image in images))
    for image, (status, answer) in zip(images, answers, strict=True):
        assert status == 200
        assert answer["results"][0]["class"] == "blue"
        if kind == "resized" or decoded(image).shape == (8, 8, 3):
            assert answer["results"][0]["score"] == pytest.approx(files.logits_of(decoded(image)).max(), abs=1e-4)


def test_arrays_of_pixels(tmp_path: Path) -> None:
    file = files.write(tmp_path / "x.onnx", "inside")
    pixels = np.random.default_rng(0).integers(0, 256, (2, 8, 8, 3))
    bodies = [json.dumps(x.tolist()).encode() for x in (pixels, pixels + 1000, pixels - 1, pixels + 0.5)]
    answers = ask(file, *((body, JSON) for body in bodies))
    scores = [row["score"] for row in answers[0][1]["results"]]
    assert scores == pytest.approx(files.logits_of(pixels).max(1).tolist(), abs=1e-4)
    refused = (422, {"error": "pixels must be whole numbers from 0 to 255; send such"})
    assert answers[1:] == [refused] * 3


def test_a_detector_of_arrays_takes_no_images(tmp_path: Path) -> None:
    file = files.write(tmp_path / "x.onnx", "array")
    answers = ask(file, (b"[1, 0, 2]", JSON), (b"[[1, 0, 2], [3, 0, 2]]", JSON), (picture(), "image/png"))
    assert [row["class"] for _, answer in answers[:2] for row in answer["results"]] == ["blue", "blue", "red"]
    assert answers[2] == (
        415,
        {"error": "the image: the detector does not take images; send arrays (3) as JSON"},
    )


def test_grey_images_of_16_bits_and_palettes(tmp_path: Path) -> None:
    deep = np.arange(64, dtype=np.uint16).reshape(8, 8) * 1000
    answers = ask(files.write(tmp_path / "x.onnx"), (encoded(deep), "image/png"), (picture(kind="GIF"), "image/gif"))
    assert [status for status, _ in answers] == [200, 200]
    expected = files.logits_of((deep >> 8)[..., None].repeat(3, 2)).max()
    assert answers[0][1]["results"][0]["score"] == pytest.approx(expected, abs=1e-5)


def test_thresholds_by_class(tmp_path: Path) -> None:
    file = files.write(tmp_path / "x.onnx", "array", by_class=True, threshold=[0.25, 0.5, 0.75])
    ((_, answer),) = ask(file, (b"[[1, 0, 2], [3, 0, 2]]", JSON))
    assert [row["threshold"] for row in answer["results"]] == [0.75, 0.25]
    assert "threshold" not in answer


@pytest.mark.parametrize(
    ("names", "shown"), [(None, ["0", "1", "2"]), (["crane", "crane", "owl"], ["crane [0]", "crane [1]", "owl"])]
)
def test_classes_without_names_and_with_the_same(tmp_path: Path, names: Any, shown: list[str]) -> None:
    inputs = {"shape": [3], "transform": None}
    file = files.write(tmp_path / "x.onnx", "array", class_names=names, inputs=inputs)
    ((_, answer),) = ask(file, (b"[3, 2, 1]", JSON))
    assert list(answer["results"][0]["probabilities"]) == shown
    assert answer["results"][0]["class"] == shown[0]


def test_a_score_that_is_not_finite_is_null(tmp_path: Path) -> None:
    """Finite inputs can overflow: 3e38 + 3e38."""
    file = files.write(tmp_path / "x.onnx")
    ((status, answer),) = ask(file, (json.dumps(np.full((3, 8, 8), 3e38).tolist()).encode(), JSON))
    assert status == 200
    assert answer["results"][0]["score"] is None


def test_too_many_requests_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_REQUESTS", 2)
    answers = ask(files.write(tmp_path / "x.onnx", "array"), *[(b"[1, 2, 3]", JSON)] * 5)
    assert sorted(status for status, _ in answers) == [200, 200, 503, 503, 503]
    assert answers[-1][1] == {"error": "too many requests are in progress; try again in a second"}


def test_a_failure_is_told_without_a_traceback_and_logged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    file = files.write(tmp_path / "x.onnx", "array")

    def fail(*_: Any) -> None:
        raise RuntimeError("secret")

    monkeypatch.setattr(module.Service, "_rows", fail)
    with caplog.at_level(logging.ERROR, "spcp"):
        ((status, answer),) = ask(file, (b"[1, 2, 3]", JSON))
    assert (status, answer) == (500, {"error": "the server failed; its log says why"})
    assert "secret" in caplog.text


def test_settings_are_checked() -> None:
    with pytest.raises(InputError, match="batch_size = 0 must be a whole number, from 1 to 4096"):
        Settings("x.onnx", batch_size=0)
