"""The head with its classes divided among processes, against the whole head in one process: one launch, many checks."""

import copy
import math
import os
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import loss_parallel

from spcp import SPCPLinear, apply_spcp, contribution_quantile, find_classifier, remove_spcp
from spcp.contributions.sharded import gather_classes, shard_classes, sharded_quantile

WORLD, D, STEPS = 4, 16, 4

# Classes, and the options of a head: classes that two and three processes share unequally, and other ways to truncate.
CASES: dict[str, tuple[int, dict[str, Any]]] = {
    "uneven": (11, {"rho_norm": 1.0}),
    "many": (301, {"rho_norm": 0.4}),
    "subset": (7, {"rho_norm": 0.5, "subset": 5}),
    "auto": (10, {"rho_norm": "auto"}),
    "infer": (7, {"rho_norm": 2.0, "stages": "infer"}),
    "plain": (8, {"rho_norm": 0.0}),
}


def make_model(num_classes: int, bias: bool = True, **options: Any) -> nn.Module:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, D), nn.ReLU(), nn.Linear(D, num_classes, bias=bias))
    return apply_spcp(model, beta=0.5, initial_threshold=1.0, **options)


def batches(num_classes: int) -> list[tuple[Tensor, Tensor]]:
    draw = torch.Generator().manual_seed(1)
    return [(torch.randn(12, 8, generator=draw), torch.arange(12) % num_classes) for _ in range(STEPS)]


def train(model: nn.Module, data: list[tuple[Tensor, Tensor]], seed: int = 3) -> dict[str, Tensor]:
    """Train a few steps; return the thresholds on the way, the last loss and gradient of x, and the logits at last."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    thresholds = []
    torch.manual_seed(seed)
    for x, y in data:
        x = x.clone().requires_grad_()
        optimizer.zero_grad()
        with loss_parallel():
            value = F.cross_entropy(model(x), y)
            value.backward()
        optimizer.step()
        thresholds.append(find_classifier(model)[1].get_buffer("threshold").clone())
    assert x.grad is not None
    with torch.no_grad():
        logits = model.eval()(data[0][0])
    return {"thresholds": torch.stack(thresholds), "loss": whole(value), "x": x.grad, "logits": whole(logits)}


def whole(x: Tensor) -> Tensor:
    return x.full_tensor() if isinstance(x, DTensor) else x


def equal(ours: dict[str, Any], theirs: dict[str, Any]) -> None:
    assert ours.keys() == theirs.keys()
    for key, value in theirs.items():
        torch.testing.assert_close(ours[key], value, msg=lambda text, key=key: f"{key}: {text}")
        assert type(ours[key]) is type(value)


def one_of_four(rank: int, folder: str) -> None:
    torch.set_num_threads(1)
    expected = {}
    for name, (num_classes, options) in CASES.items():  # before there are other processes
        model = make_model(num_classes, **options)
        results = train(model, batches(num_classes))
        expected[name] = (results, copy.deepcopy(model.state_dict()))
    os.environ.update(MASTER_ADDR="127.0.0.1", GLOO_SOCKET_IFNAME="lo")
    dist.init_process_group("gloo", init_method=f"file://{folder}/rendezvous", rank=rank, world_size=WORLD)
    two = init_device_mesh("cpu", (2, 2), mesh_dim_names=("data", "classes"))
    three = DeviceMesh("cpu", [0, 1, 2])
    for mesh in (two["classes"], three):
        if mesh.get_coordinate() is None:
            continue
        for name in CASES:
            check_training(name, *expected[name], mesh, gather_logits=True)
        check_quantiles(mesh)
    check_training("uneven", *expected["uneven"], two["classes"], gather_logits=False)
    if rank < 3:
        check_training("uneven", *expected["uneven"], three, gather_logits=False)
        check_errors(three)
    check_data_parallel(two, expected["many"][0])
    dist.barrier()
    os._exit(0)  # without the clean-up, in which gloo's threads now and then abort


def check_training(name: str, results: dict[str, Any], state: dict[str, Any], mesh: DeviceMesh, **options: Any) -> None:
    num_classes, truncation = CASES[name]
    model = shard_classes(make_model(num_classes, **truncation), mesh, **options)
    head = model.get_submodule("2")
    assert isinstance(head, SPCPLinear)
    rows = torch.arange(num_classes).chunk(mesh.size())[mesh.get_local_rank()]
    assert isinstance(head.weight, DTensor)
    assert head.weight.to_local().shape == (len(rows), D)
    ours = train(model, batches(num_classes), seed=3 + mesh.get_local_rank())  # the first process draws the subset
    equal(ours, results)
    assert torch.equal(ours["thresholds"][0], results["thresholds"][0]), "not to the bit"
    equal(model.state_dict(), state)
    other = shard_classes(make_model(num_classes, rho_norm=0.1), mesh)  # takes a whole checkpoint
    other.load_state_dict(state)
    equal(other.state_dict(), state)
    torch.testing.assert_close(other.eval()(batches(num_classes)[0][0]), results["logits"])
    equal(gather_classes(model).state_dict(), state)
    assert type(remove_spcp(other)[2]) is nn.Linear
    torch.testing.assert_close(other[2].weight, state["2.weight"])


def check_quantiles(mesh: DeviceMesh) -> None:
    """Also where the largest contributions are all of one process, tie, or where all are fewer than are sent."""
    draw = torch.Generator().manual_seed(5)
    group = mesh.get_group()
    for num_classes, skewed, ties in ((3, False, False), (40, True, False), (500, False, True), (3000, True, False)):
        h, W = torch.randn(6, D, generator=draw), torch.randn(num_classes, D, generator=draw)
        W[-num_classes // 4 :] *= 50 if skewed else 1
        W = W.round() if ties else W
        for dtype in (torch.float32, torch.float64):
            own = W.to(dtype).chunk(mesh.size())[mesh.get_local_rank()]
            for level in (0.0, 0.37, 0.9, 1 - 0.4 / num_classes, 1.0):
                ours = sharded_quantile(h.to(dtype), own, level, num_classes, group)
                assert torch.equal(ours, contribution_quantile(h.to(dtype), W.to(dtype), level)), (num_classes, level)


def check_errors(mesh: DeviceMesh) -> None:
    with pytest.raises(
        ValueError, match=r"^4 classes, 2 for each of 3 processes, leave the last without any; .* most 2"
    ):
        shard_classes(make_model(4, rho_norm=1.0), mesh)
    model = shard_classes(make_model(9, rho_norm=1.0), mesh)
    with pytest.raises(ValueError, match="divided already"):
        shard_classes(model, mesh)
    head = model.get_submodule("2")
    assert isinstance(head, SPCPLinear)
    assert isinstance(head.bias, DTensor)
    if mesh.get_local_rank() == 1:
        head.bias.to_local().data[0] = math.nan
    with pytest.raises(ValueError, match="not finite"):  # in all processes
        model(torch.ones(2, 8))


def check_data_parallel(mesh: DeviceMesh, results: dict[str, Any]) -> None:
    """Halves of a batch on the rows of the mesh: the threshold is that of the whole batch."""
    num_classes, truncation = CASES["many"]
    with pytest.raises(ValueError, match="2 dimensions"):
        shard_classes(make_model(num_classes, **truncation), mesh)
    model = shard_classes(make_model(num_classes, **truncation), mesh["classes"])
    x = batches(num_classes)[0][0].chunk(2)[mesh.get_local_rank("data")]
    model(x)
    torch.testing.assert_close(model[2].threshold, results["thresholds"][0])


def test_divided_classes_equal_the_whole_head(tmp_path: Path) -> None:
    mp.get_context("forkserver").set_forkserver_preload(["torch.distributed.tensor.parallel"])  # imported once for all
    mp.start_processes(one_of_four, (str(tmp_path),), nprocs=WORLD, start_method="forkserver")


def test_only_an_spcp_head_is_divided() -> None:
    mesh: Any = None  # not looked at
    with pytest.raises(ValueError, match=r"call apply_spcp\(model"):
        shard_classes(nn.Sequential(nn.Linear(3, 4)), mesh)
    with pytest.raises(ValueError, match="not divided"):
        gather_classes(make_model(4, rho_norm=1.0))
