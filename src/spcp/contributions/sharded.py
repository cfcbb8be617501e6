"""The SPCP head with its classes divided among processes: each holds the weights and logits of some."""

from __future__ import annotations

import math
from typing import Any, TypeVar

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor

from . import native, ops
from .head import SPCPLinear
from .quantile import mean_support
from .surgery import find_classifier

Model = TypeVar("Model", bound=nn.Module)


def shard_classes(model: Model, mesh: DeviceMesh, *, gather_logits: bool = True) -> Model:
    """Divide the classes of a model's SPCP head among the processes of a mesh, in place.

    Each process keeps the weights (K / processes, D) and computes the logits of its classes. Logits and gradients are
    those of the whole head, for truncation is a matter of single contributions; gradients of the features are summed
    over the processes. The threshold follows the exact quantile over all classes, see `sharded_quantile`. All processes
    of the mesh must pass the same features, in step.

    The parameters become `DTensor`s, so build the optimizer afterwards (on a GPU with `foreach=False`, where other
    parameters are plain tensors). The state dict holds the head whole: it is that of an undivided one, and loads into
    either; all processes must ask for it together.

    Args:
        model: a model with an SPCP head, or the head itself.
        mesh: of one dimension, such as `init_device_mesh("cpu", (2,))`, or `mesh["classes"]` of a larger one.
        gather_logits: whether the head returns all logits to every process. Otherwise it returns a `DTensor` whose
            classes are divided, (B, K), as `torch.distributed.tensor.parallel.loss_parallel` takes it.

    Returns:
        The model itself.
    """
    name, head = find_classifier(model)
    if not isinstance(head, SPCPLinear):
        raise ValueError(f"{name!r} is a plain {type(head).__name__}; call apply_spcp(model, rho_norm=...) first.")
    if isinstance(head, ShardedSPCPLinear):
        raise ValueError(f"The classes of {name!r} are divided already; call gather_classes(model) first.")
    if mesh.ndim != 1:
        raise ValueError(f"The mesh has {mesh.ndim} dimensions; give one of them, such as mesh['classes'].")
    each = math.ceil(head.out_features / mesh.size())
    if each * (mesh.size() - 1) >= head.out_features:
        raise ValueError(
            f"{head.out_features} classes, {each} for each of {mesh.size()} processes, leave the last without any; use "
            f"a mesh of at most {math.ceil(head.out_features / each)}."
        )
    for key, whole in list(head.named_parameters(recurse=False)):
        divided = distribute_tensor(whole.detach(), mesh, [Shard(0)])
        head.register_parameter(key, nn.Parameter(divided, requires_grad=whole.requires_grad))
    head.__class__ = ShardedSPCPLinear
    assert isinstance(head, ShardedSPCPLinear)
    head.mesh, head.gather_logits = mesh, gather_logits
    return model


def gather_classes(model: Model) -> Model:
    """Give every process the whole SPCP head again, in place; all processes must call it together."""
    name, head = find_classifier(model)
    if not isinstance(head, ShardedSPCPLinear):
        raise ValueError(f"The classes of {name!r} are not divided.")
    for key, divided in list(head.named_parameters(recurse=False)):
        head.register_parameter(key, nn.Parameter(_whole(divided), requires_grad=divided.requires_grad))
    del head.mesh, head.gather_logits
    head.__class__ = SPCPLinear  # type: ignore[assignment]
    return model


class ShardedSPCPLinear(SPCPLinear):
    """An SPCP head of which this process holds some classes; `shard_classes` makes it."""

    mesh: DeviceMesh
    gather_logits: bool

    def _held(self) -> tuple[Tensor, Tensor | None]:
        """Return the weights and the bias of the classes that this process holds."""
        return _own(self.weight), None if self.bias is None else _own(self.bias)

    def _replicas(self) -> int:
        """Return how many groups of processes there are that train on other samples, and this one."""
        return dist.get_world_size() // self.mesh.size()

    def _drawn(self, rows: Tensor) -> Tensor:
        """Return the rows that the first process has drawn."""
        dist.broadcast(rows, group=self.mesh.get_group(), group_src=0)
        return rows

    def forward(self, input: Tensor) -> Tensor:
        """Return the logits, all or (with `gather_logits=False`) divided; in training, update the threshold first."""
        if isinstance(input, DTensor):
            input = input.redistribute(self.mesh, [Replicate()]).to_local()
        return super().forward(input)

    def _logits(self, h: Tensor, threshold: Tensor | None) -> Tensor:
        """Return the logits, all or divided."""
        same = DTensor.from_local(h, self.mesh, [Replicate()], run_check=False)
        part = super()._logits(same.to_local(grad_placements=[Partial()]), threshold)  # gradients of h will be summed
        shape = torch.Size((*part.shape[:-1], self.out_features))
        stride = torch.empty(shape, device="meta").stride()
        z = DTensor.from_local(part, self.mesh, [Shard(part.dim() - 1)], run_check=False, shape=shape, stride=stride)
        return z.full_tensor() if self.gather_logits else z

    def estimate(self, h: Tensor) -> Tensor:
        """Estimate the threshold from each sample, (B,), by the contributions to the classes of all processes."""
        rho_norm, group = self.truncation.rho_norm, self.mesh.get_group()
        W, b = self._held()
        W, h = W.detach().to(self.threshold.dtype), h.detach().to(self.threshold.dtype)
        if b is not None:
            b = b.detach().to(W.dtype)
            h = h + 0 * b.sum()  # NaN if the logits are going to be: all processes must learn of it
        if rho_norm == "auto":
            return _sharded_support(h, W, b, group)
        return sharded_quantile(h, W, 1 - rho_norm / self.out_features, self.out_features, group)

    def revert_(self) -> nn.Linear:
        """Turn this head into the plain layer it would be without SPCP, with all classes, in place."""
        return gather_classes(self).revert_()

    def _save_to_state_dict(self, destination: dict[str, Any], prefix: str, keep_vars: bool) -> None:
        super()._save_to_state_dict(destination, prefix, keep_vars)
        for key, _ in self.named_parameters(recurse=False):
            destination[prefix + key] = _whole(destination[prefix + key])

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any) -> None:
        for key, divided in self.named_parameters(recurse=False):
            whole = state_dict.get(prefix + key)
            if isinstance(whole, Tensor) and not isinstance(whole, DTensor) and whole.shape == divided.shape:
                part = whole.chunk(self.mesh.size())[self.mesh.get_local_rank()].to(divided.device)
                state_dict[prefix + key] = DTensor.from_local(
                    part, self.mesh, [Shard(0)], run_check=False, shape=whole.shape, stride=whole.stride()
                )
        super()._load_from_state_dict(state_dict, prefix, *args)


def sharded_quantile(h: Tensor, W: Tensor, level: float, num_classes: int, group: dist.ProcessGroup) -> Tensor:
    """Return what `contribution_quantile` does for the weights of all processes, (B,); each passes some rows of them.

    The quantile is the m-th largest contribution of a sample, m about `rho_norm * D`, and some interpolation. About
    m / processes of the m largest are of each process; so each sends a few more than that, and where they turn out to
    be too few, its m largest. The result is exact in either case. A process sends about
    `B * (m / processes + 4 sqrt(m / processes))` numbers, and at worst `B * m`.

    Args:
        h: features, (B, D), the same in all processes.
        W: the weights of this process's classes, float32 or float64.
        level: in [0, 1], as for `contribution_quantile`.
        num_classes: K, of all processes.
        group: the processes.
    """
    count = num_classes * W.shape[1]
    position = level * (count - 1)
    lower = min(int(position), max(count - 2, 0))
    m = count - lower  # the two that are interpolated between are the m-th and the next larger one
    share = m / dist.get_world_size(group)
    sent = min(m, math.ceil(share + 4 * math.sqrt(share)) + 8)
    merged, complete = _merged_top(h, W, sent, m, group)
    if not complete:
        merged, _ = _merged_top(h, W, m, m, group)
    low, high = merged[:, m - 1], merged[:, max(m - 2, 0)]
    if ops.kernels_for(h) is native:  # which interpolates in float64: to the bit as in one process
        return (low + (position - lower) * (high.double() - low)).to(h.dtype)
    return torch.lerp(low, high, position - lower)


def _merged_top(h: Tensor, W: Tensor, sent: int, m: int, group: dist.ProcessGroup) -> tuple[Tensor, bool]:
    """Return the m largest of what all processes send, (B, m), and whether these are the m largest of all there is.

    What a process holds back is at most the smallest that it sends. It is complete where that is not above the m-th
    largest of what was sent.
    """
    largest = ops.kernels_for(h).top(h, W, min(sent, W.numel()))
    largest = F.pad(largest, (0, sent - largest.shape[1]), value=-math.inf)
    everyone = [torch.empty_like(largest) for _ in range(dist.get_world_size(group))]
    dist.all_gather(everyone, largest, group)
    gathered = torch.cat(everyone, 1)
    if gathered.shape[1] < m:
        return gathered, False
    merged = gathered.topk(m).values + 0 * torch.where(gathered.isnan(), gathered, 0).sum(1, keepdim=True)
    smallest = torch.stack(everyone).amin(2).amax(0)  # (B,)
    return merged, sent == m or not bool((smallest > merged[:, -1]).any())


def _sharded_support(h: Tensor, W: Tensor, b: Tensor | None, group: dist.ProcessGroup) -> Tensor:
    """Return what `mean_support` does for the weights of all processes, (B,): the largest logit may be anyone's."""
    here = torch.stack([F.linear(h, W, b).amax(1), mean_support(h, W, b)])  # (2, B)
    everyone = [torch.empty_like(here) for _ in range(dist.get_world_size(group))]
    dist.all_gather(everyone, here, group)
    logit, support = torch.stack(everyone, 1)  # (processes, B) each
    return support.gather(0, logit.argmax(0, keepdim=True))[0] + 0 * support.sum(0)


def _own(x: Tensor) -> Tensor:
    assert isinstance(x, DTensor)
    return x.to_local()


def _whole(x: Tensor) -> Tensor:
    assert isinstance(x, DTensor)
    return x.full_tensor().detach()
