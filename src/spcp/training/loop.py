"""The one training loop, for all methods, on Lightning Fabric."""

from __future__ import annotations

import contextlib
import copy
import logging
import math
import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.linalg import LinAlgError  # type: ignore[attr-defined]

from ..contributions import SPCPLinear
from ..data import Benchmark, ItemSet, Loader, load_benchmark, take
from ..data.sets import labels
from ..errors import InputError, need
from ..methods import Method
from ..networks import Network, adapt, trust
from ..networks.adapted import logits_of
from ..networks.base import evaluating
from .display import Display
from .run import Run, load_weights
from .settings import Config, augmented, build_method, build_network, check, is_own, lr_at

_log = logging.getLogger("spcp")

LOOK = 0.5  # seconds between two looks at the loss, which wait for the device


class Trainee(nn.Module):
    """Network and method as one module, so that distributed training sees all of a step."""

    def __init__(self, network: Network, method: Method) -> None:
        super().__init__()
        self.network, self.method = network, method

    def forward(self, x: Tensor, y: Tensor | None = None, progress: float = 0.0) -> tuple[Tensor, Tensor] | Tensor:
        """Loss and logits; without labels the predicted classes."""
        if y is None:
            return self.method.predict(self.network, x)
        loss, logits = self.method(self.network, x, y, progress)
        return loss, logits


def train(
    config: Config,
    folder: str | Path,
    *,
    benchmark: Benchmark | None = None,
    network: nn.Module | None = None,
    method: Method | None = None,
    strategy: Any = "auto",
    loggers: Any = None,
    until: int | None = None,
) -> Path:
    """Train, or go on training, and return the folder of the run.

    Args:
        config: the settings; a folder that holds a run with other settings is an error.
        folder: of the run.
        benchmark: instead of the one the config names.
        network: instead of the one the config names, any classifier. A copy of it is trained (`load_network` gives it);
            it must be built alike when the run is resumed.
        method: instead of the method the config names, one's own.
        strategy: of Fabric, under torchrun: "auto" is data parallel, "fsdp" shards parameters too.
        loggers: of Fabric (TensorBoard, CSV, ...), told what `metrics.jsonl` is told.
        until: stop after so many epochs; the next call goes on.
    """
    check(config)
    given = {} if network is None else {"custom_network": type(network).__name__}
    if method is not None:
        given["custom_method"] = f"{type(method).__name__}({method.options})"
    lightning = need("lightning_fabric", "lightning-fabric", "train")
    logging.getLogger("lightning_fabric").setLevel(logging.WARNING)  # it announces a precision once a run
    try:
        fabric = lightning.Fabric(
            accelerator="auto",
            devices=int(os.environ.get("LOCAL_WORLD_SIZE", "1")),
            num_nodes=int(os.environ.get("GROUP_WORLD_SIZE", "1")),
            strategy=_sharded() if strategy == "fsdp" else strategy,
            precision=config.precision,
            loggers=loggers,
        )
    except ValueError as error:
        raise InputError(str(error)) from error
    fabric.launch()
    run = Run(Path(folder).expanduser(), config, fabric.is_global_zero, given)
    run.check()
    own = copy.deepcopy(method) if method is not None else build_method(config)
    if own.pretrained and network is None and not config.start:
        raise InputError(f"{config.method}: needs a trained network; name a run, or its weights, in `start`")
    benchmark = (benchmark or load_benchmark(config.benchmark, config.root)).fewer(config.images)
    if benchmark.train is None:
        raise InputError(f"{benchmark.name}: has no training data; {' '.join(benchmark.notes)}")
    torch.manual_seed(config.seed)
    inputs = benchmark.inputs()
    if is_own(config.network):
        trust(config.network)
    net = build_network(config, inputs) if network is None else adapt(copy.deepcopy(network))
    if config.start:
        load_weights(net, Path(config.start).expanduser())

    share = {"rank": fabric.global_rank, "world_size": fabric.world_size, "device": fabric.device}
    loader = augmented(benchmark, config.augment).loader(
        "train", batch_size=config.batch_size, train=True, seed=config.seed, views=own.views, **share
    )
    sharded = strategy == "fsdp"
    if sharded:
        share |= {"rank": 0, "world_size": 1}  # all processes have to run the network equally often
    validation = benchmark.loader("val", batch_size=512 * share["world_size"], **share) if benchmark.val else None
    first = take(benchmark.train, range(min(64, len(benchmark.train))))  # to see what share of contributions is cut
    some, _ = next(
        iter(Loader(first, benchmark.transform, batch_size=64, device=fabric.device, workers=0, cache=False))
    )
    _check_fit(benchmark, net, network, some.cpu())
    try:
        own.prepare(net, config.epochs * len(loader))
    except (TypeError, ValueError) as error:
        raise InputError(f"{config.method}: {error}") from error
    if not sharded:  # FSDP cuts parameters along their memory
        net = net.to(memory_format=layout_of(net))  # type: ignore[call-overload]
    trainee = Trainee(net, own)
    module = fabric.setup_module(trainee)  # before the optimizer: sharding makes new parameters
    sgd = torch.optim.SGD(
        [p for p in trainee.parameters() if p.requires_grad],
        lr=config.lr,
        momentum=config.momentum,
        nesterov=config.momentum > 0,
        weight_decay=config.weight_decay,
        fused=None if sharded else True,  # not for sharded parameters
    )
    optimizer = fabric.setup_optimizers(sgd)
    run.scaler = getattr(fabric._precision, "scaler", None)
    run.claim(inputs)
    fabric.barrier()
    if not run.resume(trainee, sgd, fabric.device):
        own.begin(net, benchmark.loader("train", batch_size=config.batch_size, device=fabric.device))

    run.record_environment()
    last = config.epochs if until is None else min(config.epochs, until)
    status = "failed"
    try:
        with _interrupts() as interrupted, Display(run, len(loader), len(benchmark.train)) as display:
            while run.epoch < last:
                _epoch(run, trainee, module, optimizer, loader, fabric, display, interrupted)
                accuracy = None if validation is None else _accuracy(trainee, validation, fabric, sharded)
                _join_sums(run, fabric)
                line = _line(run, trainee, accuracy, _share_cut(trainee, some))
                display.epoch(line)
                fabric.log_dict({key: value for key, value in line.items() if value is not None}, step=run.epoch)
                run.finish_epoch(trainee, sgd, line)
                if run.epoch < last and any(_agreed(fabric, interrupted.is_set())):
                    _stop(run)
        status = "success"
    finally:
        for logger in fabric._loggers:
            logger.finalize(status)
    fabric.barrier()
    return run.folder


def layout_of(network: nn.Module) -> torch.memory_format:
    """Channels last, which is faster; but torch 2.13 on a CPU corrupts memory in it with very narrow convolutions."""
    narrow = any(isinstance(own, nn.Conv2d) and own.out_channels < 8 for own in network.modules())
    return torch.contiguous_format if narrow else torch.channels_last


def _check_fit(benchmark: Benchmark, net: Network, network: nn.Module | None, x: Tensor) -> None:
    """Say early what would fail late, or train nonsense: labels or outputs that do not fit, a model cut wrongly."""
    assert benchmark.train is not None
    classes = len(benchmark.class_names)
    known = torch.empty(0) if isinstance(benchmark.train, ItemSet) else labels(benchmark.train)  # not to read all items
    if len(known) and not 0 <= int(known.min()) <= int(known.max()) < classes:
        raise InputError(
            f"{benchmark.name}: its training labels run from {int(known.min())} to {int(known.max())}, but must be "
            f"from 0 to {classes - 1}; leave out what has no class"
        )
    if net.classifier.out_features != classes:
        raise InputError(
            f"the network has {net.classifier.out_features} outputs, but {benchmark.name} has {classes} classes; build "
            "it for as many"
        )
    if network is None or isinstance(network, Network):
        return
    whole = copy.deepcopy(network).cpu()
    cut = copy.deepcopy(net).cpu()
    with evaluating(whole, cut):
        ours, theirs = cut(x[:2]), logits_of(whole(x[:2]))
    if ours.shape != theirs.shape or not torch.allclose(ours, theirs, rtol=1e-3, atol=1e-4):
        raise InputError(
            f"{type(network).__name__}: does more after its last layer, so that its output is not the logits; give a "
            "model that ends in an nn.Linear, or name it: train(network=spcp.networks.adapt(model, 'name'))"
        )


def _sharded() -> Any:
    """Fabric's strategy for PyTorch's FSDP (fully_shard)."""
    from torch.distributed.fsdp import fully_shard

    if "WORLD_SIZE" not in os.environ:
        raise InputError('strategy "fsdp": is for several processes; start them with torchrun')

    def shard(module: nn.Module, mesh: Any) -> nn.Module:
        fully_shard(module, mesh=mesh["data_parallel"])
        return module

    strategies = need("lightning_fabric.strategies", "lightning-fabric", "train")
    return strategies.ModelParallelStrategy(
        shard, data_parallel_size=int(os.environ["WORLD_SIZE"]), tensor_parallel_size=1
    )


def _epoch(
    run: Run,
    trainee: Trainee,
    module: Any,
    optimizer: Any,
    loader: Loader,
    fabric: Any,
    display: Display,
    interrupted: threading.Event,
) -> None:
    """The rest of an epoch. The device is asked for numbers twice a second at most, and at the end."""
    config, steps = run.config, len(loader)
    total, warmup = config.epochs * steps, config.warmup * steps
    layout = layout_of(trainee.network)
    module.train()
    started = saved = looked = time.perf_counter()
    for x, y in loader.epoch(run.epoch, run.step):
        step = run.epoch * steps + run.step
        run.lr = lr_at(step, total, config, warmup)
        for group in optimizer.param_groups:
            group["lr"] = run.lr
        if x.ndim == 4:
            x = x.contiguous(memory_format=layout)
        optimizer.zero_grad()
        try:
            loss, logits = module(x, y, step / total)
        except (ValueError, LinAlgError) as error:  # the head's word on what is not finite, for example
            raise run.fail(str(error).split("\n")[0].rstrip(".")) from error
        fabric.backward(loss)
        optimizer.step()
        run.add(loss.detach(), logits.detach(), y)
        run.step += 1
        now, last = time.perf_counter(), run.step == steps
        due = now - looked >= LOOK or interrupted.is_set()
        if not (last or (run.step % 50 == 0 if fabric.world_size > 1 else due)):  # several look at the same step
            continue
        looked = now
        if not math.isfinite(float(run.sums[0])):
            raise run.fail("the loss is not finite")
        display.step(_threshold(trainee))
        stopping, saving = _agreed(fabric, interrupted.is_set(), now - saved >= config.save_every)
        if (stopping or saving) and not last:
            run.seconds += now - started
            started = saved = now
            _join_sums(run, fabric)
            run.save(trainee, optimizer.optimizer)
            if stopping:
                _stop(run)
    run.seconds += time.perf_counter() - started


def _stop(run: Run) -> None:
    _log.warning("stopped in epoch %d; the same command goes on from here: %s", run.epoch + 1, run.folder)
    raise KeyboardInterrupt


def _agreed(fabric: Any, *flags: bool) -> tuple[bool, ...]:
    """Whether any process raises a flag, flag by flag."""
    if fabric.world_size == 1:
        return flags
    raised = fabric.all_reduce(torch.tensor(flags, dtype=torch.float32, device=fabric.device), reduce_op="sum")
    return tuple(flag > 0 for flag in raised.tolist())


def _join_sums(run: Run, fabric: Any) -> None:
    """Let the first process hold what all have summed."""
    if fabric.world_size > 1:
        run.sums = fabric.all_reduce(run.sums, reduce_op="sum") * fabric.is_global_zero


@contextlib.contextmanager
def _interrupts() -> Iterator[threading.Event]:
    """Let Ctrl-C end the step before it ends the run; a second one ends it at once."""
    interrupted = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield interrupted
        return

    def stop(number: int, frame: Any) -> None:
        if interrupted.is_set():
            raise KeyboardInterrupt
        interrupted.set()

    before = signal.signal(signal.SIGINT, stop)
    try:
        yield interrupted
    finally:
        signal.signal(signal.SIGINT, before)


@torch.no_grad()
def _accuracy(trainee: Trainee, validation: Loader, fabric: Any, sharded: bool) -> float:
    """The accuracy on the validation data, in percent, over all processes.

    In float32, as the network will be used, whatever the precision of training is; and without the wrapper of data
    parallelism, which talks to the others in every pass, while some processes have fewer passes to make.
    """
    trainee.eval()  # validation data must not move a threshold
    right = torch.zeros((), device=fabric.device)
    for x, y in validation:
        right += (trainee(x) == y).sum()
    trainee.train()
    if not sharded:
        right = fabric.all_reduce(right, reduce_op="sum")
    return float(right) / len(validation.data) * 100


@torch.no_grad()
def _share_cut(trainee: Trainee, x: Tensor) -> float | None:
    """The share of contributions of some samples above the threshold; None where nothing is bounded."""
    head = trainee.method.head(trainee.network)
    if not isinstance(head, SPCPLinear):
        return None
    over: list[int] = []

    def count(head: SPCPLinear, inputs: tuple[Tensor], _: Tensor) -> None:  # here sharded weights are whole
        over.extend(int((h * head.weight > head.threshold).sum()) for h in inputs[0].float())

    hook = head.register_forward_hook(count)
    trainee.eval()
    trainee(x)
    trainee.train()
    hook.remove()
    return sum(over) / (len(over) * head.in_features * head.out_features)


def _threshold(trainee: Trainee) -> float | None:
    head = trainee.method.head(trainee.network)
    return float(head.threshold) if isinstance(head, SPCPLinear) else None


def _line(run: Run, trainee: Trainee, accuracy: float | None, cut: float | None) -> dict[str, Any]:
    """An epoch in numbers."""
    loss, right, seen = run.sums.tolist() if run.writes else (0.0, 0.0, 1.0)
    line: dict[str, Any] = {"epoch": run.epoch, "loss": loss / seen, "accuracy": right / seen * 100}
    line |= {"val_accuracy": accuracy, "lr": run.lr, "seconds": round(run.seconds, 2)}
    return line if cut is None else line | {"threshold": _threshold(trainee), "cut": cut}
