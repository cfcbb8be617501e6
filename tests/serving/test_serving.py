"""What the service answers, and what it refuses; the server's process cannot import torch."""

from __future__ import annotations

import json
import signal
import socket
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from . import files
from .conftest import Reply, Server, decoded, encoded, picture, serving


def expected(pixels: np.ndarray) -> dict[str, Any]:
    """Return a row by the formulas: for an image that is neither resized nor cropped."""
    logits = files.logits_of(pixels)
    score = logits.max()
    p = np.exp(logits) / np.exp(logits).sum()
    return {
        "is_ood": bool(score < files.THRESHOLD),
        "p_value": (1 + (score >= files.CALIBRATION).sum()) / (1 + len(files.CALIBRATION)),
        "class": files.NAMES[logits.argmax()],
        "score": pytest.approx(score, abs=1e-5),
        "probabilities": pytest.approx(dict(zip(files.NAMES, p, strict=True)), abs=1e-5),
    }


COLOURS = {"red": (250, 100, 60), "green": (60, 200, 90), "blue": (90, 90, 250), "grey": (120, 100, 70)}


@pytest.mark.parametrize("name", COLOURS)
@pytest.mark.parametrize("kind", ["PNG", "BMP", "TIFF", "WEBP", "JPEG", "GIF"])
def test_an_image(server: Server, name: str, kind: str) -> None:
    data = picture(COLOURS[name], kind=kind)
    status, body, headers = server.ask(body=data)
    assert (status, headers["content-type"]) == (200, "application/json")
    assert body == {
        "results": [{"id": 0, **expected(decoded(data))}],
        "alpha": 0.05,
        "threshold": files.THRESHOLD,
        "detector": {"name": "colours", "score": "maxlogit"},
    }
    assert body["results"][0]["is_ood"] is (name == "grey")
    assert list(body["results"][0]["probabilities"].values()) == sorted(
        body["results"][0]["probabilities"].values(), reverse=True
    )


def test_an_image_is_prepared_as_in_the_library(server: Server) -> None:
    """Turned upright, resized and cropped: a large one, which a thread reads, and a small one."""
    from spcp.data import ImageTransform
    from spcp.data.images import as_image, eval_pixels

    transform = ImageTransform(**{key: files.TRANSFORM[key] for key in files.TRANSFORM if key != "kind"})
    for side in (20, 300):
        pixels = np.zeros((side, 2 * side, 3), np.uint8)
        pixels[:, :side] = (250, 20, 20)
        pixels[: side // 4] = (0, 0, 255)
        image = Image.fromarray(pixels)
        exif = image.getexif()
        exif[0x0112] = 6  # the camera was held on its side
        data = encoded(pixels, exif=exif)
        turned = eval_pixels(as_image(np.rot90(pixels, -1), ""), transform)
        (row,) = server.ask(body=data).body["results"]
        assert row == {"id": 0, **expected(turned)}


def test_a_form_with_several_files(server: Server) -> None:
    images = {f"{name}.png": picture(colour) for name, colour in COLOURS.items()}
    status, body, _ = server.form(*images.items())
    assert status == 200
    assert body["results"] == [{"file": name, **expected(decoded(data))} for name, data in images.items()]
    assert body["alpha"] == 0.05


def test_a_file_among_others_that_cannot_be_read_is_a_row_with_its_problem(server: Server) -> None:
    image = picture()
    status, body, _ = server.form(("a.png", image), ("b.png", image[:100]), ("c.png", b""))
    assert status == 200
    assert body["results"][0] == {"file": "a.png", **expected(decoded(image))}
    assert [list(row) for row in body["results"][1:]] == [["file", "problem"]] * 2
    assert "b.png: not a readable image" in body["results"][1]["problem"]
    assert body["results"][2]["problem"] == "c.png: is empty; send an image, or arrays as JSON"


def test_files_that_all_cannot_be_read_are_refused(server: Server) -> None:
    status, body, _ = server.form(("b.png", b"none"), ("c.png", b""))
    assert status == 400
    assert body["error"].startswith("b.png: not a readable image")


def test_arrays(server: Server) -> None:
    """One, and many: more than a batch, and so large that a thread reads them."""
    x = np.random.default_rng(0).normal(0.5, 1, (20, 3, 8, 8)).round(3)
    logits = x.mean((2, 3))
    one = server.arrays(x[0].tolist())
    many = server.arrays(x[:19].tolist())
    assert one.status == many.status == 200
    rows = many.body["results"]
    assert len(rows) == 19
    assert one.body["results"][0]["score"] == pytest.approx(rows[0]["score"], abs=1e-6)
    for i, row in enumerate(rows):
        assert row["id"] == i
        assert row["score"] == pytest.approx(logits[i].max(), abs=1e-5)
        assert row["class"] == files.NAMES[logits[i].argmax()]
        assert row["is_ood"] is bool(logits[i].max() < files.THRESHOLD)


def test_how_many_probabilities(server: Server) -> None:
    image = picture((60, 200, 90))
    assert server.ask("/detect?top=1", image).body["results"][0]["probabilities"].keys() == {"green"}
    assert server.ask("/detect?top=0", image).body["results"][0]["probabilities"] == {}
    for top in ("-1", "x", "1e9", "9" * 5000):
        status, body, _ = server.ask(f"/detect?top={top}", image)
        assert status == 422
        assert body["error"].startswith("top = ")
        assert len(body["error"]) < 100


SHAPE = "send a sample (3, 8, 8), or a list of such"
BAD = {
    "nothing": (b"", "image/png", 400, "the body is empty"),
    "text": (b"hello", "image/png", 400, "the image: not a readable image (cannot identify image file); repair"),
    "damaged": (picture()[:150], "image/png", 400, "the image: not a readable image"),
    "a program": (b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n", "image/eps", 400, "not a readable image"),
    "32-bit pixels": (encoded(np.ones((8, 8), np.int32), "TIFF"), "image/tiff", 400, "the image: an image of mode I"),
    "no JSON": (b"{", "application/json", 400, "the body is not valid JSON"),
    "binary JSON": (b"\xff\xfe\x00", "application/json", 400, "the body is not valid JSON"),
    "deep JSON": (b"[" * 50_000, "application/json", 400, "the body is not valid JSON"),
    "no array": (b'{"a": 1}', "application/json", 422, f"the body is not an array of numbers; {SHAPE}"),
    "words": (b'["a"]', "application/json", 422, f"the body is not an array of numbers; {SHAPE}"),
    "booleans": (json.dumps(np.ones((3, 8, 8), bool).tolist()), "application/json", 422, "not an array of numbers"),
    "null": (b"null", "application/json", 422, "the body is not an array of numbers"),
    "a number": (b"1", "application/json", 422, f"the body is an array (); {SHAPE}"),
    "no samples": (b"[]", "application/json", 422, f"the body is an array (0,); {SHAPE}"),
    "another shape": (
        json.dumps(np.ones((2, 8, 8)).tolist()),
        "application/json",
        422,
        "the body is an array (2, 8, 8)",
    ),
    "ragged": (b"[[1, 2], [1]]", "application/json", 422, "the rows of the array differ in length"),
    "NaN": (
        json.dumps(np.full((3, 8, 8), np.nan).tolist()),
        "application/json",
        422,
        "the array holds NaN or infinity",
    ),
    "huge": (json.dumps(np.full((3, 8, 8), 1e300).tolist()), "application/json", 422, "holds NaN or infinity"),
    "huge whole": (b"[" + b"9" * 5000 + b"]", "application/json", 400, "the body is not valid JSON"),
    "no boundary": (b"x", "multipart/form-data", 400, "the form cannot be read"),
    "a broken form": (b"x", "multipart/form-data; boundary=y", 400, "the form cannot be read"),
    "a form without a file": (
        b'--x\r\nContent-Disposition: form-data; name="a"\r\n\r\nb\r\n--x--\r\n',
        "multipart/form-data; boundary=x",
        400,
        "the form has no file",
    ),
    "bytes": (b"x" * 100_001, "image/png", 413, "the body has more than 100000 bytes; send less at once"),
    "pixels": (encoded(np.zeros((500, 401), np.uint8)), "image/png", 413, "the image: has 401 x 500 pixels, more than"),
    "a bomb": (encoded(np.zeros((9000, 9000), bool)), "image/png", 413, "the image: has more than 200000 pixels; make"),
    "a thread": (encoded(np.zeros((20000, 1), np.uint8)), "image/png", 400, "would become"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_input_is_refused_in_one_sentence(server: Server, name: str) -> None:
    body, kind, status, words = BAD[name]
    reply = server.ask(body=body, kind=kind)
    assert reply.status == status
    assert reply.body.keys() == {"error"}
    assert words in reply.body["error"]
    assert "\n" not in reply.body["error"]
    assert len(reply.body["error"]) < 250
    assert server.ask(body=picture()).status == 200


def test_a_body_of_unknown_length_is_cut_off(server: Server) -> None:
    parts = iter([b"x" * 60_000] * 3)  # sent in chunks
    reply = server.ask(body=parts, kind="image/png")
    assert (reply.status, reply.body["error"][:31]) == (413, "the body has more than 100000 b")


def test_a_body_that_does_not_arrive_is_not_waited_for(server: Server) -> None:
    with socket.create_connection(("127.0.0.1", server.port), timeout=60) as client:
        client.sendall(b"POST /detect HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\nxxx")
        answer = client.recv(4096)
        while b"}" not in answer:
            answer += client.recv(4096)
    assert answer.startswith(b"HTTP/1.1 408 ")
    assert b'{"error": "the body did not arrive within 2 s; send it faster"}' in answer


def test_a_client_that_leaves_harms_nobody(server: Server) -> None:
    before = server.metric('spcp_requests_total{status="400"}')
    with socket.create_connection(("127.0.0.1", server.port), timeout=60) as client:
        client.sendall(b"POST /detect HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\nxxx")
    while server.metric('spcp_requests_total{status="400"}') == before:
        time.sleep(0.05)
    assert server.ask(body=picture()).status == 200


def test_health(server: Server) -> None:
    status, body, _ = server.ask("/health")
    assert (status, body["status"]) == (200, "ok")
    assert body["detector"]["name"] == "colours"
    assert body["detector"]["alpha"] == 0.05


def test_metrics_count_requests_and_decisions(server: Server) -> None:
    names = ('spcp_requests_total{status="200"}', 'spcp_samples_total{verdict="ood"}', "spcp_p_value_count")
    before = [server.metric(name) for name in names]
    server.form(("a.png", picture()), ("b.png", picture(COLOURS["grey"])), ("c.png", b""))
    assert [server.metric(name) - old for name, old in zip(names, before, strict=True)] == [1, 1, 2]
    assert server.metric("spcp_unreadable_total") >= 1
    assert server.metric("spcp_requests_in_progress") == 0
    assert server.metric("spcp_batch_size_count") == server.metric("spcp_batch_seconds_count") > 0


def test_every_decision_is_logged(server: Server, log: Path) -> None:
    server.ask(body=picture(COLOURS["blue"]))
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    assert lines[-1]["class"] == "blue"
    assert {"time", "id", "is_ood", "p_value", "class", "score"} <= lines[-1].keys()


def test_the_description_for_programs(server: Server) -> None:
    api = server.ask("/openapi.json").body
    detect = api["paths"]["/detect"]["post"]
    assert set(detect["requestBody"]["content"]) == {"image/*", "multipart/form-data", "application/json"}
    assert [parameter["name"] for parameter in detect["parameters"]] == ["top"]
    assert {"200", "400", "413", "422", "503", "504"} <= detect["responses"].keys()
    row = server.ask(body=picture()).body["results"][0]
    assert row.keys() <= api["components"]["schemas"]["Result"]["properties"].keys()
    assert set(api["paths"]) == {"/detect", "/health", "/metrics"}


@pytest.mark.parametrize(
    ("path", "method", "status"), [("/no", "GET", 404), ("/detect", "GET", 405), ("/", "POST", 405)]
)
def test_what_there_is_not(server: Server, path: str, method: str, status: int) -> None:
    reply = server.ask(path, method=method)
    assert reply.status == status
    assert reply.body["error"].endswith("; GET /docs lists what there is")


def test_many_clients_get_their_own_answers(server: Server) -> None:
    batches, samples = (server.metric(f"spcp_batch_size_{what}") for what in ("count", "sum"))
    wrong: list[Any] = []

    def client(k: int) -> None:
        colours = np.random.default_rng(k).integers(30, 230, (8, 3))
        for colour in colours:
            data = picture(tuple(map(int, colour)))
            reply = server.ask(body=data)
            if reply.body.get("results") != [{"id": 0, **expected(decoded(data))}]:
                wrong.append(reply)

    threads = [threading.Thread(target=client, args=(k,)) for k in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
    assert server.metric("spcp_batch_size_sum") - samples == 64
    assert server.metric("spcp_batch_size_count") - batches <= 64


def takes_requests(server: Server) -> bool:
    try:
        return server.ask("/health").status == 200
    except OSError:
        return False


def test_time_is_limited_and_a_stop_waits_for_answers(tmp_path: Path) -> None:
    gate = tmp_path / "wait"
    with serving(files.write(tmp_path / "colours.onnx"), "--timeout", 3, gate=gate) as server:
        replies: list[Reply] = []

        def ask() -> threading.Thread:
            thread = threading.Thread(target=lambda: replies.append(server.ask(body=picture())))
            thread.start()
            return thread

        gate.touch()
        for thread in [ask() for _ in range(3)]:
            thread.join()
        error = {"error": "there was no decision within 3 s; send less at once, or try later"}
        assert [(reply.status, reply.body) for reply in replies] == [(504, error)] * 3
        gate.unlink()
        assert server.ask(body=picture()).status == 200

        gate.touch()
        last = ask()
        while not server.metric("spcp_requests_in_progress"):
            time.sleep(0.02)
        server.process.send_signal(signal.SIGTERM)
        while takes_requests(server):
            time.sleep(0.02)
        gate.unlink()
        last.join()
        assert replies[-1].status == 200
        assert server.process.wait(60) == 0


def test_workers_share_the_port_and_the_metrics(tmp_path: Path) -> None:
    with serving(files.write(tmp_path / "colours.onnx"), "--workers", 2) as server:
        for _ in range(20):
            assert server.ask(body=picture()).status == 200
        assert server.metric('spcp_requests_total{status="200"}') == 20
        assert server.stop() == 0
