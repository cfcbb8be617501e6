import os
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from spcp import apply_spcp

STEPS = 4


def make_model() -> nn.Module:
    torch.manual_seed(0)
    return apply_spcp(
        nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 5)), 1.0, beta=0.5, initial_threshold=1.0
    )


def make_batches() -> list[torch.Tensor]:
    return [torch.randn(12, 8, generator=torch.Generator().manual_seed(step)) for step in range(STEPS)]


def train(model: nn.Module, batches: list[torch.Tensor]) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for x in batches:
        optimizer.zero_grad()
        model(x).square().sum(1).mean().backward()
        optimizer.step()


def one_of_two(rank: int, folder: str) -> None:
    os.environ.update(MASTER_ADDR="127.0.0.1", GLOO_SOCKET_IFNAME="lo")
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/rendezvous", rank=rank, world_size=2)
    model = make_model()
    train(DistributedDataParallel(model), [x[6 * rank : 6 * rank + 6] for x in make_batches()])
    torch.save(model.state_dict(), f"{folder}/{rank}.pt")
    # Unequal shares: the mean is over all samples, not of the replicas' means.
    model.train()(torch.ones(1, 8) if rank == 0 else torch.zeros(3, 8))
    torch.save(model[2].threshold, f"{folder}/unequal{rank}.pt")
    dist.barrier()
    os._exit(0)  # without the clean-up, in which gloo's threads now and then abort


def test_two_processes_equal_one_with_the_joint_batch(tmp_path: Path) -> None:
    mp.spawn(one_of_two, (str(tmp_path),), nprocs=2)
    model = make_model()
    train(model, make_batches())
    states = [torch.load(tmp_path / f"{rank}.pt") for rank in (0, 1)]
    assert torch.equal(states[0]["2.threshold"], states[1]["2.threshold"])
    for key, expected in model.state_dict().items():
        torch.testing.assert_close(states[0][key], expected)
    model(torch.cat([torch.ones(1, 8), torch.zeros(3, 8)]))
    for rank in (0, 1):
        torch.testing.assert_close(torch.load(tmp_path / f"unequal{rank}.pt"), model[2].threshold)
