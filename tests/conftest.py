import logging
import os
from collections.abc import Iterator
from typing import Any

os.environ["TRITON_INTERPRET"] = "1"  # before Triton is imported: there may be no GPU

import others
import pytest
import shapes
import torch
from hypothesis import settings

from spcp import progress

shapes.check_all()

settings.register_profile("spcp", deadline=None, derandomize=True, max_examples=100)
settings.load_profile("spcp")


@pytest.fixture(scope="session")
def library() -> torch.library.Library:
    """Beside a CPU build of torch, torchvision lacks the operators it names on import: declare them."""
    torchvision = torch.library.Library("torchvision", "FRAGMENT")
    for name in ("nms", "qnms"):
        if not hasattr(torch.ops.torchvision, name):
            torchvision.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    return torchvision


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    playwright = pytest.importorskip("playwright.sync_api")
    with playwright.sync_playwright() as driver:
        chromium = driver.chromium.launch(executable_path=others.CHROMIUM, args=["--no-sandbox"])
        yield chromium
        chromium.close()


@pytest.fixture(autouse=True)
def _as_new() -> None:
    """Each test starts as a new process would, whatever ran before it."""
    torch.manual_seed(0)
    logging.getLogger("spcp").setLevel(logging.NOTSET)  # `--quiet` sets these two
    progress.quiet = False
