import os

os.environ["TRITON_INTERPRET"] = "1"  # before Triton is imported: there may be no GPU

import pytest
import torch
from hypothesis import settings

settings.register_profile("spcp", deadline=None, derandomize=True, max_examples=100)
settings.load_profile("spcp")


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)
