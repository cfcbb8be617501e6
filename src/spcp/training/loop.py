"""The one training loop, for all methods, on Lightning Fabric."""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import json
import logging
import math
import os
import signal
import threading
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.linalg import LinAlgError  # type: ignore[attr-defined]

from ..config import LARGE_SIDE, Config, build_method, build_network
from ..contributions import SPCPLinear
from ..data import Benchmark, ImageTransform, ItemSet, Loader, take
from ..data.sets import labels
from ..errors import InputError, need
from ..files import locked
from ..methods import Method
from ..metrics import is_guessing
from ..networks import NETWORKS, Network, adapt, is_pretrained, preprocessing_of
from ..networks.adapted import agree, logits_of
from ..progress import progress_bar
from ..runs import Run, load_weights
from .display import Display
from .state import TrainingState

_log = logging.getLogger("spcp")

LOOK = 0.5  # seconds between two looks at the loss, which wait for the device
REFLECTED = 3  # pixels by which images with a reflected border are shifted at most: less than with a black one


class Trainee(nn.Module):
    """Network and method as one module, so that distributed training sees all of a step."""

    def __init__(self, network: Network, method: Method) -> None:
        super().__init__()
        self.network, self.method = network, method

    def forward(self, x: Tensor, y: Tensor | None = None, progress: float = 0.0) -> tuple[Tensor, Tensor] | Tensor:
        """Return loss and logits; without labels the predicted classes."""
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
) -> Run:
    """Train, or continue a run, and return it. Meanwhile no other process can write into its folder.

    Args:
        config: the settings; a folder that holds a run with other settings is an error.
        folder: of the run.
        benchmark: instead of the one the config names.
        network: instead of the one the config names, any classifier. A copy of it is trained (`Run.load` returns it);
            it must be built alike when the run is resumed.
        method: instead of the one the config names.
        strategy: of Fabric, under torchrun: "auto" is data parallel, "fsdp" shards parameters too.
        loggers: of Fabric (TensorBoard, CSV, ...), told what `metrics.jsonl` is told.
        until: stop after so many epochs; the next call continues.
    """
    config.check()
    given = {} if network is None else {"custom_network": type(network).__name__}
    if method is not None:
        given["custom_method"] = f"{type(method).__name__}({method.options}, {method.truncation})"
    fabric = _launched(config, strategy, loggers)
    state = TrainingState(Path(folder).expanduser(), config, fabric.is_global_zero, given)
    with locked(state.folder) if state.writes else contextlib.nullcontext(), _exact(config.precision):
        return _train(state, fabric, benchmark, network, method, strategy, until)


def _train(
    state: TrainingState,
    fabric: Any,
    benchmark: Benchmark | None,
    network: nn.Module | None,
    method: Method | None,
    strategy: Any,
    until: int | None,
) -> Run:
    """Train in a folder that is locked; the arguments are those of `train`."""
    state.check()
    config = state.config
    trained = build_method(config) if method is None else copy.deepcopy(method)
    if trained.pretrained and network is None and not config.start:
        raise InputError(f"{config.method}: needs a trained network; name a run, or its weights, in `start`")
    benchmark = (benchmark or Run(state.folder, config).benchmark()).fewer(config.images)
    if benchmark.train is None:
        raise InputError(f"{benchmark.name}: has no training data; {' '.join(benchmark.notes)}")
    torch.manual_seed(config.seed)
    inputs = benchmark.inputs()
    fresh = not config.start and not state.resumable
    if network is None:
        net = build_network(config, inputs, code=config.network, weights="body" if fresh else "none")
    else:
        net = adapt(copy.deepcopy(network))
    if network is None and not state.resumable:
        _check_preprocessing(config.network, benchmark)
    if config.start and not state.resumable:
        load_weights(net, Path(config.start).expanduser(), new_classifier=True)

    share = {"rank": fabric.global_rank, "world_size": fabric.world_size, "device": fabric.device}
    loader = augmented(benchmark, config.augment).loader(
        "train", batch_size=config.batch_size, train=True, seed=config.seed, views=trained.views, **share
    )
    sharded = strategy == "fsdp"
    if sharded:
        share |= {"rank": 0, "world_size": 1}  # all processes have to run the network equally often
    validation = benchmark.loader("val", batch_size=512 * share["world_size"], **share) if benchmark.val else None
    first = take(benchmark.train, range(min(64, len(benchmark.train))))  # on which the share truncated is measured
    some, _ = next(
        iter(Loader(first, benchmark.transform, batch_size=64, device=fabric.device, workers=0, cache=False))
    )
    _check_fit(benchmark, config.network, net, network, some.cpu())
    total = config.epochs * len(loader)
    try:
        trained.prepare(net, total)
    except (TypeError, ValueError) as error:
        raise InputError(f"{config.method}: {error}") from error
    if not sharded:  # FSDP splits parameters along their memory
        net = net.to(memory_format=layout_of(net))  # type: ignore[call-overload]
    trainee = Trainee(net, trained)
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
    state.scaler = getattr(fabric.strategy.precision, "scaler", None)
    state.claim(inputs)
    fabric.barrier()
    if not state.resume(trainee, sgd, fabric.device):
        in_order = benchmark.loader("train", batch_size=config.batch_size, device=fabric.device)
        if not config.start:
            net.begin(in_order)
        trained.begin(net, in_order)

    state.record_environment()
    last = config.epochs if until is None else min(config.epochs, until)
    status = "failed"
    try:
        with _interrupts() as interrupted, progress_bar("", total, show=state.writes) as bar:
            display = Display(bar, state, len(loader), len(benchmark.train))
            while state.epoch < last:
                _epoch(state, trainee, module, optimizer, loader, fabric, display, interrupted)
                accuracy = None if validation is None else _accuracy(trainee, validation, fabric, sharded)
                _join_sums(state, fabric)
                record = _record(state, trainee, accuracy, _share_truncated(trainee, some))
                display.epoch(record)
                fabric.log_dict({key: value for key, value in record.items() if value is not None}, step=state.epoch)
                state.finish_epoch(trainee, sgd, record)
                if state.epoch < last and any(_agreed(fabric, interrupted.is_set())):
                    _stop(state)
        status = "success"
    finally:
        for logger in fabric.loggers:
            logger.finalize(status)
    fabric.barrier()
    run = Run.open(state.folder, network=config.network if network is None else network, method=method)
    if state.writes and last == config.epochs and benchmark.val:
        warn_of_guessing(run.history[-1]["val_accuracy"], labels(benchmark.val))
    return run


def warn_of_guessing(accuracy: float, y: Tensor) -> None:
    """Say so if a network does not classify its validation data better than a guess."""
    if is_guessing(accuracy, y):
        _log.warning(
            "the validation accuracy, %.1f %% of %d samples, is no better than guessing, so scores mean little; train "
            "longer (--epochs), on more samples, or start from a pretrained network (--model)",
            *(100 * accuracy, len(y)),
        )


def augmented(benchmark: Benchmark, augment: str) -> Benchmark:
    """Return the same benchmark, whose training images are changed otherwise, or not at all."""
    transform = benchmark.transform
    if augment == "full" or not isinstance(transform, ImageTransform):
        return benchmark
    if augment == "reflect":
        shifts = dataclasses.replace(transform, padding=min(REFLECTED, transform.padding), border="reflect")
        return dataclasses.replace(benchmark, transform=shifts)
    kind: Literal["crop", "none"] = "crop" if augment == "flip" and transform.flip else "none"
    return dataclasses.replace(benchmark, transform=dataclasses.replace(transform, augment=kind, padding=0))


def lr_at(step: int, total: int, config: Config, warmup_steps: int) -> float:
    """Return the learning rate of a step: a rise over the warm-up, then down to `min_lr` by half a cosine or a line.

    >>> config = Config(lr=0.1, min_lr=0.0)
    >>> [round(lr_at(step, 10, config, 2), 3) for step in (0, 1, 2, 4, 6, 10)]
    [0.05, 0.1, 0.1, 0.085, 0.05, 0.0]
    >>> round(lr_at(4, 10, Config(lr=0.1, min_lr=0.0, schedule="linear"), 2), 3)
    0.075
    """
    if step < warmup_steps:
        return config.lr * (step + 1) / warmup_steps
    share = (step - warmup_steps) / max(1, total - warmup_steps)
    left = 1 - share if config.schedule == "linear" else (1 + math.cos(math.pi * share)) / 2
    return config.min_lr + (config.lr - config.min_lr) * left


def layout_of(network: nn.Module) -> torch.memory_format:
    """Choose channels last, which is faster, but for narrow convolutions.

    There oneDNN in torch 2.13 corrupts memory: below 8 channels with AVX2, up to 8 at least with AVX-512, whose vectors
    hold 16.
    """
    narrow = any(isinstance(layer, nn.Conv2d) and layer.out_channels < 16 for layer in network.modules())
    return torch.contiguous_format if narrow else torch.channels_last


def _check_fit(benchmark: Benchmark, name: str, net: Network, network: nn.Module | None, x: Tensor) -> None:
    """Refuse what would fail late, or train nonsense: labels or outputs that do not fit, a model split wrongly."""
    assert benchmark.train is not None
    num_classes = len(benchmark.class_names)
    y = torch.empty(0) if isinstance(benchmark.train, ItemSet) else labels(benchmark.train)  # not to read all items
    if len(y) and not 0 <= int(y.min()) <= int(y.max()) < num_classes:
        raise InputError(
            f"{benchmark.name}: its training labels run from {int(y.min())} to {int(y.max())}, but must be from 0 to "
            f"{num_classes - 1}; leave out what has no class"
        )
    if net.num_classes != num_classes:
        raise InputError(
            f"the network has {net.num_classes} outputs, but {benchmark.name} has {num_classes} classes; build it for "
            "as many"
        )
    large = f"{name}_224"
    if network is None and large in NETWORKS and max(x.shape[2:]) > LARGE_SIDE:
        raise InputError(
            f"{name}: is for images of 32 pixels, and those of {benchmark.name} have {max(x.shape[2:])}, which would "
            f"cost many times as much as {large}; choose that network, or a size of at most {LARGE_SIDE} pixels"
        )
    if network is None or isinstance(network, Network):
        return
    ours, theirs = (logits_of(copy.deepcopy(model).cpu(), x[:2]) for model in (net, network))
    if not agree(ours, theirs):
        raise InputError(
            f"{type(network).__name__}: does more after its last layer, so that its output is not the logits; give a "
            "model that ends in an nn.Linear, or name it: train(network=spcp.networks.adapt(model, 'name'))"
        )


def _check_preprocessing(name: str, benchmark: Benchmark) -> None:
    """Say where images are not prepared as those that a pretrained network was trained on."""
    transform = benchmark.transform
    if not is_pretrained(name) or not isinstance(transform, ImageTransform):
        return
    wanted = {key: value for key, value in preprocessing_of(name).items() if key not in ("resize", "crop")}
    same = {key: value for key, value in vars(transform).items() if key in wanted}
    numbers = [(wanted[key], same[key]) for key in ("mean", "std")]
    close = all(math.isclose(a, b, abs_tol=1e-3) for pair in numbers for a, b in zip(*pair, strict=False))
    if not close or any(wanted[key] != same[key] for key in ("interpolation", "squash")):
        listed = ", ".join(f"{key} = {json.dumps(value)}" for key, value in wanted.items())
        _log.warning(
            "%s: expects images with %s; write this into the data's [transform], or give it to "
            "make_benchmark(transform=...)",
            name,
            listed,
        )


def _launched(config: Config, strategy: Any, loggers: Any) -> Any:
    """Start Fabric on the processes that torchrun started, or on one."""
    lightning = need("lightning_fabric", "lightning-fabric", "train")
    logging.getLogger("lightning_fabric").setLevel(logging.WARNING)  # it announces a precision once a run
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "You passed .*precision=")  # that it takes another one, an error below
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
    taken = fabric.strategy.precision.precision
    if not taken.startswith(config.precision):  # "32" is short for "32-true"
        raise InputError(
            f"precision {config.precision}: cannot be computed on this device, {taken} can; choose that, or 32-true"
        )
    fabric.launch()
    return fabric


@contextlib.contextmanager
def _exact(precision: str) -> Iterator[None]:
    """Keep NVIDIA GPUs from TF32 in a training in float32: it is their default for convolutions, with 10 bits of 23."""
    convolutions: Any = torch.backends.cudnn.conv  # type: ignore[attr-defined]
    rounds = precision == "32-true" and convolutions.fp32_precision == "tf32"
    if rounds:
        torch.backends.cudnn.allow_tf32 = False
    try:
        yield
    finally:
        if rounds:
            torch.backends.cudnn.allow_tf32 = True


def _sharded() -> Any:
    """Return Fabric's strategy for PyTorch's FSDP (fully_shard)."""
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
    state: TrainingState,
    trainee: Trainee,
    module: Any,
    optimizer: Any,
    loader: Loader,
    fabric: Any,
    display: Display,
    interrupted: threading.Event,
) -> None:
    """Train the rest of an epoch. The device is asked for numbers twice a second at most, and at the end."""
    config, steps = state.config, len(loader)
    total, warmup = config.epochs * steps, config.warmup * steps
    layout = layout_of(trainee.network)
    module.train()
    started = saved = looked = time.perf_counter()
    for x, y in loader.epoch(state.epoch, state.step):
        step = state.epoch * steps + state.step
        state.lr = lr_at(step, total, config, warmup)
        for group in optimizer.param_groups:
            group["lr"] = state.lr
        if x.ndim == 4:
            x = x.contiguous(memory_format=layout)
        optimizer.zero_grad()
        try:
            loss, logits = module(x, y, step / total)
        except (ValueError, LinAlgError) as error:  # the head rejects what is not finite, for example
            raise state.fail(str(error).split("\n")[0].rstrip(".")) from error
        fabric.backward(loss)
        optimizer.step()
        state.add(loss.detach(), logits.detach(), y)
        state.step += 1
        now, last = time.perf_counter(), state.step == steps
        due = now - looked >= LOOK or interrupted.is_set()
        if not (last or (state.step % 50 == 0 if fabric.world_size > 1 else due)):  # several look at the same step
            continue
        looked = now
        if not math.isfinite(float(state.sums[0])):
            raise state.fail("the loss is not finite")
        display.step(_threshold(trainee))
        stopping, saving = _agreed(fabric, interrupted.is_set(), now - saved >= config.save_every)
        if (stopping or saving) and not last:
            state.seconds += now - started
            started = saved = now
            _join_sums(state, fabric)
            state.save(trainee, optimizer.optimizer)
            if stopping:
                _stop(state)
    state.seconds += time.perf_counter() - started


def _stop(state: TrainingState) -> None:
    _log.warning("stopped in epoch %d; the same command continues from here: %s", state.epoch + 1, state.folder)
    raise KeyboardInterrupt


def _agreed(fabric: Any, *flags: bool) -> tuple[bool, ...]:
    """Tell whether any process raises a flag, flag by flag."""
    if fabric.world_size == 1:
        return flags
    raised = fabric.all_reduce(torch.tensor(flags, dtype=torch.float32, device=fabric.device), reduce_op="sum")
    return tuple(flag > 0 for flag in raised.tolist())


def _join_sums(state: TrainingState, fabric: Any) -> None:
    """Let the first process hold what all have summed."""
    if fabric.world_size > 1:
        state.sums = fabric.all_reduce(state.sums, reduce_op="sum") * fabric.is_global_zero


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
    """Return the accuracy on the validation data, over all processes.

    It is computed in float32, as the network will be used, whatever the precision of training is; and without the
    wrapper of data parallelism, which waits for the others in every pass, while some processes make fewer passes.
    """
    trainee.eval()  # validation data must not move a threshold
    correct = torch.zeros((), device=fabric.device)
    for x, y in validation:
        correct += (trainee(x) == y).sum()
    trainee.train()
    if not sharded:
        correct = fabric.all_reduce(correct, reduce_op="sum")
    return float(correct) / len(validation.data)


@torch.no_grad()
def _share_truncated(trainee: Trainee, x: Tensor) -> float | None:
    """Return the share of contributions of some samples above the threshold; None where nothing is truncated."""
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


def _record(state: TrainingState, trainee: Trainee, accuracy: float | None, truncated: float | None) -> dict[str, Any]:
    """Return an epoch in numbers."""
    loss, correct, seen = state.sums.tolist() if state.writes else (0.0, 0.0, 1.0)
    record: dict[str, Any] = {"epoch": state.epoch, "loss": loss / seen, "accuracy": correct / seen}
    record |= {"val_accuracy": accuracy, "lr": state.lr, "seconds": round(state.seconds, 2)}
    return record if truncated is None else record | {"threshold": _threshold(trainee), "truncated": truncated}
