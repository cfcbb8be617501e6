import pytest
import torch
from shapes import checked

import spcp
from spcp import scores


def product(h: torch.Tensor, W: torch.Tensor, b: torch.Tensor | None = None) -> torch.Tensor:
    z = h @ W
    return z if b is None else z + b


@pytest.mark.parametrize("shape", [(5,), (2, 5), (3, 2, 5)])
def test_shapes_that_fit_pass(shape: tuple[int, ...]) -> None:
    call = checked(product, "... D, D K, K -> ... K")
    assert call(torch.rand(shape), W=torch.rand(5, 4), b=torch.rand(4)).shape == (*shape[:-1], 4)
    call(torch.rand(shape), torch.rand(5, 4))


@pytest.mark.parametrize(
    ("signature", "message"),
    [
        ("B D, D K -> K B", "K is 4 and 2"),
        ("B D, D K -> B", "shape .2, 4. is not"),
        ("B D, D K -> ... D", "D is 5 and 4"),
        ("B D, D K -> B K, B", "zip"),
    ],
)
def test_shapes_that_do_not_fit_are_named(signature: str, message: str) -> None:
    with pytest.raises((AssertionError, ValueError), match=message):
        checked(product, signature)(torch.rand(2, 5), torch.rand(5, 4))


def test_the_library_is_checked_in_the_test_run() -> None:
    assert hasattr(spcp.clip_contributions, "__wrapped__")
    assert all(hasattr(score.score, "__wrapped__") for score, _ in scores.SCORES.values() if "score" in vars(score))
