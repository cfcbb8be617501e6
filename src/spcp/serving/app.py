"""The HTTP service of an exported detector: its paths, what they answer, and their limits."""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import functools
import json
import logging
import math
import time
import warnings
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from importlib import resources
from typing import Any

import numpy as np
import PIL.Image
from fastapi import FastAPI, Request, Response
from fastapi.responses import HTMLResponse, JSONResponse
from pydantic import BaseModel, Field
from starlette.datastructures import UploadFile
from starlette.exceptions import HTTPException
from starlette.formparsers import MultiPartException, MultiPartParser
from starlette.requests import ClientDisconnect

from .. import __version__
from ..data.images import TooManyPixelsError
from ..errors import InputError
from ..exported import ExportedDetection, ExportedDetector
from .batching import Batcher
from .metrics import Metrics
from .samples import RequestError, Samples
from .settings import Settings

Read = Callable[[bytes, int], np.ndarray]  # samples of a file or an array, if it has no more pixels than that

_log = logging.getLogger("spcp")
_REQUESTS = 1024  # in progress
_BODIES = 16  # times the largest body: the bytes of all requests in progress
_FILES = 1000  # in a form
_SMALL_BYTES, _SMALL_PIXELS = 1 << 16, 1 << 14  # up to there a thread would cost more than reading does
_TOP = 10  # classes whose probabilities are listed


class Result(BaseModel):
    """What is decided about one sample; the problem alone, if it cannot be read."""

    file: str | None = Field(None, description="the name of a file in a form; else there is an id")
    id: int | None = Field(None, description="the place of the sample in the request, from 0")
    is_ood: bool | None = Field(None, description="whether it is flagged as out-of-distribution")
    p_value: float | None = Field(None, description="small for a sample unlike the calibration data")
    class_: str | None = Field(None, alias="class", description="the predicted class")
    score: float | None = Field(None, description="larger is more in-distribution; null if not finite")
    probabilities: dict[str, float] | None = Field(None, description="the most probable classes: softmax of the logits")
    threshold: float | None = Field(None, description="of the predicted class, if each has one")
    problem: str | None = Field(None, description="why this file, among others, cannot be read")


class Answer(BaseModel):
    """What is decided about the samples of a request, and by which detector."""

    results: list[Result]
    alpha: float = Field(description="the largest share of in-distribution samples that is flagged, on average")
    threshold: float | None = Field(None, description="what scores below it is flagged")
    detector: dict[str, str] = Field(description="name and score")


class Problem(BaseModel):
    """Why there is no answer."""

    error: str = Field(description="one sentence: what is wrong, and what to do")


_NUMBERS: dict[str, Any] = {"type": "array", "items": {}, "description": "a sample as the network takes it, or a list"}
_BYTES = {"type": "string", "format": "binary"}
_REQUEST = {
    "parameters": [
        {
            "name": "top",
            "in": "query",
            "description": "how many classes have a probability",
            "schema": {"type": "integer", "minimum": 0, "default": _TOP},
        }
    ],
    "requestBody": {
        "required": True,
        "content": {
            "image/*": {"schema": _BYTES},
            "multipart/form-data": {
                "schema": {"type": "object", "properties": {"files": {"type": "array", "items": _BYTES}}}
            },
            "application/json": {"schema": _NUMBERS},
        },
    },
}
_PROBLEMS: dict[int | str, dict[str, Any]] = {
    400: {"model": Problem, "description": "the body is empty, damaged or not what its type says"},
    408: {"model": Problem, "description": "the body took too long to arrive"},
    413: {"model": Problem, "description": "too many bytes or pixels"},
    415: {"model": Problem, "description": "the detector does not take images"},
    422: {"model": Problem, "description": "numbers of another shape, or that are not finite"},
    503: {"model": Problem, "description": "too many requests at once; try again"},
    504: {"model": Problem, "description": "no decision within the time limit"},
}


def from_environment() -> FastAPI:
    """Build the app of a worker process."""
    return build_app(Settings.from_environment())


def build_app(settings: Settings) -> FastAPI:
    """Build the ASGI app of a detector, for uvicorn or any other server."""
    service = Service(settings)
    app = FastAPI(
        title="spcp",
        version=__version__,
        summary=f"Out-of-distribution detection by {settings.name}",
        docs_url=None,  # FastAPI's pages load their code from elsewhere; ours do not
        redoc_url=None,
        lifespan=service.lifespan,
    )

    @app.post("/detect", response_model=Answer, responses=_PROBLEMS, openapi_extra=_REQUEST)
    async def detect(request: Request) -> Response:
        """Classify samples, and tell whether they are OOD.

        The body is an image file, a form with files, or JSON: an array, prepared as the network takes it, or a list of
        arrays. Of several files in a form, those that cannot be read have a problem, and the others a result.
        """
        return await service.respond(request)

    @app.get("/health")
    async def health() -> dict[str, Any]:
        """Say that the service is ready, and with which detector."""
        return service.health()

    @app.get("/metrics", response_class=Response, responses={200: {"content": {"text/plain": {}}}})
    def metrics() -> Response:
        """Return counts and times of all workers, as text for Prometheus."""
        return Response(service.metrics.text(), media_type="text/plain; version=0.0.4; charset=utf-8")

    for path, page in (("/", "page.html"), ("/docs", "docs.html")):
        answer = HTMLResponse(_page(page, service.about()), headers={"Content-Security-Policy": _POLICY})
        app.get(path, include_in_schema=False)(functools.partial(_same, answer))

    @app.exception_handler(HTTPException)
    async def refuse(request: Request, error: HTTPException) -> Response:
        text = f"{request.method} {request.url.path}: {error.detail}; GET /docs lists what there is"
        return JSONResponse({"error": text}, error.status_code, error.headers)

    return app


async def _same(answer: Response) -> Response:
    return answer


# The pages bring their own script and style, and talk to nobody but this server.
_POLICY = (
    "default-src 'none'; connect-src 'self'; img-src blob: data:; style-src 'unsafe-inline'; script-src 'unsafe-inline'"
)


def _page(name: str, about: dict[str, Any]) -> str:
    """Return a page with its style, the report's, and what it says about the detector."""
    files = resources.files("spcp")
    text = files.joinpath("serving", name).read_text(encoding="utf-8")
    style = files.joinpath("report", "page.css").read_text(encoding="utf-8")
    facts = json.dumps(about).replace("<", "\\u003c")  # no name of a class ends the script
    return text.replace("/* page.css */", style).replace("{/* about */}", facts)


class Service:
    """A detector, and what it takes to answer requests with it."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.detector = ExportedDetector.open(settings.file, threads=settings.threads, spinning=False)
        self.samples = Samples(self.detector)
        self.metrics = Metrics()
        names = self.detector.class_names or []
        twice = {name for name, count in Counter(names).items() if count > 1}  # ImageNet has two cranes
        self.class_names = [f"{name} [{k}]" if name in twice else name for k, name in enumerate(names)]
        self.requests = self.bytes = 0  # in progress
        threshold = self.detector.metadata["threshold"]
        self.thresholds = threshold if isinstance(threshold, list) else None
        self.common: dict[str, Any] = {"alpha": self.detector.alpha}
        self.common |= {} if self.thresholds else {"threshold": threshold}
        self.common["detector"] = {"name": settings.name, "score": self.detector.metadata["score"]}

    @contextlib.asynccontextmanager
    async def lifespan(self, app: FastAPI) -> AsyncIterator[None]:
        """Get ready, and at the end answer what is in progress."""
        logging.getLogger("python_multipart").setLevel(logging.ERROR)  # what is wrong with a form, its sender is told
        pixels = np.uint8 if self.samples.pixels else np.float32
        for size in (self.settings.batch_size, 1):  # memory is taken now
            self.detector.detect(np.zeros((size, *(side or 32 for side in self.samples.shape)), pixels))
        self.readers = ThreadPoolExecutor(self.settings.threads + 1, "spcp-read")
        self.batcher = Batcher(
            self.detector.detect,
            batch_size=self.settings.batch_size,
            max_wait=self.settings.max_wait_ms / 1000,
            observe=self.metrics.batch,
        )
        with contextlib.ExitStack() as stack, _pillow(self.settings.max_pixels):
            self.log = stack.enter_context(open(self.settings.log, "ab", 0)) if self.settings.log else None
            yield
            self.readers.shutdown()
            self.batcher.close()

    def about(self) -> dict[str, Any]:
        """Return what the pages show of the detector."""
        transform = self.detector.inputs["transform"]
        return {
            **self.common,
            "classes": len(self.class_names) or None,
            "calibration_samples": self.detector.metadata["calibration_samples"],
            "shape": self.samples.shape,
            "takes": "images" if self.samples.takes_images else "arrays",
            "kind": transform["kind"] if transform else None,
            "max_bytes": self.settings.max_bytes,
            "max_pixels": self.settings.max_pixels,
        }

    def health(self) -> dict[str, Any]:
        """Return that all is well, and with what."""
        about = self.detector.metadata
        facts = {key: about.get(key) for key in ("score", "alpha", "date", "run", "calibration_samples")}
        return {"status": "ok", "detector": {"name": self.settings.name, **facts}, "spcp": __version__}

    async def respond(self, request: Request) -> Response:
        """Answer a request, with an answer or with what is wrong."""
        start = time.perf_counter()
        parts: list[bytes] = []  # of the body
        self.requests += 1
        self.metrics.in_progress(1)
        try:
            content, status = await self._answer(request, parts), 200
        except InputError as error:
            content, status = {"error": str(error)}, _status(error)
        except Exception:
            _log.exception("a request could not be answered")
            content, status = {"error": "the server failed; its log says why"}, 500
        finally:
            self.requests -= 1
            self.bytes -= sum(map(len, parts))
            self.metrics.in_progress(-1)
        self.metrics.answer(status, time.perf_counter() - start, content.get("results", ()))
        headers = {"Retry-After": "1"} if status == 503 else None
        return Response(json.dumps(content), status, headers, "application/json")

    async def _answer(self, request: Request, parts: list[bytes]) -> dict[str, Any]:
        top, arrived = _top(request), False
        try:
            async with asyncio.timeout(self.settings.timeout):
                await self._receive(request, parts)
                arrived = True
                samples = await self._files(request, b"".join(parts))
                results = await self._decide_all(samples)
        except TimeoutError:
            seconds = f"{self.settings.timeout:g} s"
            if not arrived:
                raise RequestError(408, f"the body did not arrive within {seconds}; send it faster") from None
            raise RequestError(
                504, f"there was no decision within {seconds}; send less at once, or try later"
            ) from None
        rows: list[dict[str, Any]] = []
        for (file, _, _), result in zip(samples, results, strict=True):
            if isinstance(result, ExportedDetection):
                rows += self._rows(result, file, top)
            elif isinstance(result, InputError) and len(samples) > 1:
                rows.append({"file": file, "problem": str(result)})
            else:
                raise result
        if all("problem" in row for row in rows):
            raise next(result for result in results if isinstance(result, InputError))
        if self.log:
            now = datetime.datetime.now(datetime.UTC).isoformat(timespec="milliseconds")
            self.log.write(b"".join(json.dumps({"time": now, **row}).encode() + b"\n" for row in rows))
        return {"results": rows, **self.common}

    async def _decide_all(
        self, samples: list[tuple[str | None, bytes, Read]]
    ) -> list[ExportedDetection | BaseException]:
        if len(samples) == 1:
            return [await self._decide(*samples[0][1:])]
        return await asyncio.gather(*(self._decide(data, read) for _, data, read in samples), return_exceptions=True)

    async def _decide(self, data: bytes, read: Read) -> ExportedDetection:
        """Read samples, small ones at once and others in a thread, and decide about them."""
        samples = None
        if len(data) <= _SMALL_BYTES:
            with contextlib.suppress(TooManyPixelsError):
                samples = read(data, _SMALL_PIXELS)
        if samples is None:
            loop = asyncio.get_running_loop()
            samples = await loop.run_in_executor(self.readers, read, data, self.settings.max_pixels)
        return await self.batcher.submit(samples)

    async def _receive(self, request: Request, parts: list[bytes]) -> None:
        """Receive the body, as long as it and those of all requests are not too large."""
        limit = self.settings.max_bytes
        declared = request.headers.get("content-length", "")
        size = int(declared) if declared.isdecimal() else 0
        if self.requests > _REQUESTS or self.bytes + size > _BODIES * limit:
            raise RequestError(503, "too many requests are in progress; try again in a second")
        received = 0
        try:
            if size <= limit:
                async for part in request.stream():
                    received += len(part)
                    if received > limit:
                        break
                    parts.append(part)
                    self.bytes += len(part)
        except ClientDisconnect:
            raise RequestError(400, "the client went away before all had arrived; send it again") from None
        if max(size, received) > limit:
            raise RequestError(413, f"the body has more than {limit} bytes; send less at once, or a smaller image")

    async def _files(self, request: Request, body: bytes) -> list[tuple[str | None, bytes, Read]]:
        """Return what a body holds, with the names of files if it is a form, and how to read it."""
        kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        if not body:
            raise RequestError(400, "the body is empty; send an image, a form with files, or arrays as JSON")
        if kind == "application/json":
            return [(None, body, self.samples.of_json)]
        if kind != "multipart/form-data":
            return [(None, body, self.samples.of_image)]
        try:
            form = await MultiPartParser(request.headers, _once(body), max_files=_FILES).parse()
        except (MultiPartException, KeyError, ValueError) as error:  # the last from python-multipart, unwrapped
            raise RequestError(400, f"the form cannot be read ({error}); send it as multipart/form-data") from error
        files = [file for _, file in form.multi_items() if isinstance(file, UploadFile)]
        if not files:
            raise RequestError(400, "the form has no file; add one, such as with curl -F file=@photo.jpg")
        contents = [(file.filename or f"file {i}", await file.read()) for i, file in enumerate(files)]
        return [(name, data, functools.partial(self.samples.of_image, name=name)) for name, data in contents]

    def _rows(self, detection: ExportedDetection, file: str | None, top: int) -> list[dict[str, Any]]:
        """Return a row for each sample, as `spcp detect` has it, with the probabilities of the likeliest classes."""
        logits = detection.logits.astype(np.float64)
        names = self.class_names or list(map(str, range(logits.shape[1])))
        with np.errstate(invalid="ignore"):  # logits that are not finite have no probabilities
            probabilities = np.exp(logits - logits.max(1, keepdims=True))
            probabilities /= probabilities.sum(1, keepdims=True)  # (n, K)
        likeliest = (-probabilities).argsort(1, "stable")[:, :top]
        columns = (column.tolist() for column in (*detection, probabilities, likeliest))
        rows = []
        for i, (k, _, score, p_value, is_ood, p, order) in enumerate(zip(*columns, strict=True)):
            row: dict[str, Any] = {"id": i} if file is None else {"file": file}
            row |= {"is_ood": is_ood, "p_value": p_value, "class": names[k], "score": _finite(score)}
            row["probabilities"] = {names[j]: _finite(p[j]) for j in order}
            if self.thresholds:
                row["threshold"] = self.thresholds[k]
            rows.append(row)
        return rows


@contextlib.contextmanager
def _pillow(max_pixels: int) -> Iterator[None]:
    """Let Pillow know all formats, and give it the same limit, which then holds for resized images, too."""
    PIL.Image.init()
    before = PIL.Image.MAX_IMAGE_PIXELS
    PIL.Image.MAX_IMAGE_PIXELS = max_pixels
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", PIL.Image.DecompressionBombWarning)  # an error follows
            yield
    finally:
        PIL.Image.MAX_IMAGE_PIXELS = before


def _status(error: InputError) -> int:
    if isinstance(error, RequestError):
        return error.status
    return 413 if isinstance(error, TooManyPixelsError) else 400


def _top(request: Request) -> int:
    if not request.scope["query_string"]:  # quickly
        return _TOP
    text = request.query_params.get("top", str(_TOP))
    if not text.isdecimal() or len(text) > 9:
        raise RequestError(422, f"top = {text:.20} must be a whole number, at least 0")
    return int(text)


async def _once(body: bytes) -> AsyncGenerator[bytes, None]:
    yield body


def _finite(number: float) -> float | None:
    """Return a number that JSON can hold."""
    return number if math.isfinite(number) else None
