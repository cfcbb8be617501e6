"""OpenOOD v1.5's four benchmarks in numbers: sets, counts, lists, transforms, and rules where there are no lists."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor

from .images import ImageTransform
from .sets import DataSet, labels, rank_in_class


class Rule(NamedTuple):
    """Which samples of a source make a part, where there is no list."""

    text: str
    select: Callable[[DataSet], Tensor] = lambda data: torch.arange(len(data))


ALL = Rule("all images")


def _first(n: int) -> Rule:
    return Rule(f"first {n}", lambda data: torch.arange(min(n, len(data))))


def _after(n: int) -> Rule:
    return Rule(f"all but the first {n}", lambda data: torch.arange(min(n, len(data)), len(data)))


def _first_a_class(n: int) -> Rule:
    return Rule(f"first {n} a class", lambda data: (rank_in_class(labels(data)) < n).nonzero()[:, 0])


def _after_first_a_class(n: int) -> Rule:
    return Rule(f"all but the first {n} a class", lambda data: (rank_in_class(labels(data)) >= n).nonzero()[:, 0])


# TinyImageNet's classes that CIFAR has too; OpenOOD leaves them out (and single images, which only its lists name).
_TIN_IN_CIFAR = {
    "cifar10": """n01641577 n01644900 n01855672 n02002724 n02056570 n02058221 n02085620 n02094433 n02099601 n02099712
        n02106662 n02113799 n02123045 n02123394 n02124075 n02814533 n03100240 n03447447 n03662601 n03670208 n03796401
        n03977966 n04146614 n04285008""",
    "cifar100": """n01443537 n01698640 n01742172 n01774384 n01774750 n01944390 n01983481 n02129165 n02132136 n02165456
        n02206856 n02233338 n02279972 n02281406 n02403003 n02437312 n02480495 n02481823 n02504458 n02793495 n02823428
        n02843684 n02917067 n03085013 n03179701 n03201208 n03637318 n03649909 n03796401 n03937543 n03983396 n04099969
        n04146614 n04311004 n04328186 n04366367 n04399382 n04417672 n04465501 n04487081 n07579787 n07720875 n07734744
        n07747607 n09193705 n09246464 n09428293""",
}


def _tin(benchmark: str, validation: bool) -> Rule:
    """Take, of the classes CIFAR lacks, every seventh (in the order of their ids) for validation until there are 20."""
    shared = set(_TIN_IN_CIFAR[benchmark].split())

    def index(data: DataSet) -> Tensor:
        free = [k for k, name in enumerate(data.class_names) if name not in shared]
        chosen = set(free[::7][:20])
        wanted = chosen if validation else set(free) - chosen
        return torch.tensor([i for i, k in enumerate(labels(data).tolist()) if k in wanted])

    return Rule(
        f"classes that CIFAR lacks, {'20 of them for' if validation else 'without the 20 of'} OOD validation", index
    )


@dataclass(frozen=True)
class Part:
    """One set of a benchmark: where it comes from, which list names its images, and how many there are."""

    source: str  # the data set it is taken from
    imglist: str  # below benchmark_imglist, without .txt
    count: int  # 0: any
    rule: Rule = ALL  # where there is no list
    half: str = "test"  # the official half it is taken from


@dataclass(frozen=True)
class Spec:
    """One of OpenOOD's benchmarks in numbers."""

    num_classes: int
    transform: ImageTransform
    train: Part
    val: Part
    test: Part
    ood_val: Mapping[str, Part]
    near: Mapping[str, Part]
    far: Mapping[str, Part]
    shifted: Mapping[str, Part] = field(default_factory=dict)


IMAGENET = ImageTransform(256, 224, (0.485, 0.456, 0.406), (0.229, 0.224, 0.225), augment="resized_crop")


def _by_source(*parts: Part) -> dict[str, Part]:
    return {part.source: part for part in parts}


def _imagenet(name: str, val: int, test: int, v2_and_c: int) -> Spec:
    """Describe ImageNet or its 200 classes, which share the OOD data."""
    shifted = {"imagenet_v2": ("v2", v2_and_c), "imagenet_c": ("c", v2_and_c), "imagenet_r": ("r", 30000)}
    return Spec(
        1000 if name == "imagenet" else 200,
        IMAGENET,
        Part(name, f"{name}/train_{name}", 0, Rule("all training images"), "train"),
        Part(name, f"{name}/val_{name}", val, _first_a_class(5), "val"),
        Part(name, f"{name}/test_{name}", test, _after_first_a_class(5), "val"),
        _by_source(Part("openimage_o", "imagenet/val_openimage_o", 1763, _first(1763))),
        _by_source(Part("ssb_hard", "imagenet/test_ssb_hard", 49000), Part("ninco", "imagenet/test_ninco", 5879)),
        _by_source(
            Part("inaturalist", "imagenet/test_inaturalist", 10000),
            Part("texture", "imagenet/test_textures", 5160),
            Part("openimage_o", "imagenet/test_openimage_o", 15869, _after(1763)),
        ),
        {source: Part(source, f"{name}/test_{name}_{end}", count) for source, (end, count) in shifted.items()},
    )


def _cifar(name: str, transform: ImageTransform, a_class: int, near: Part, tin: tuple[int, int], places: int) -> Spec:
    """Describe CIFAR-10 or CIFAR-100, which differ in numbers only."""
    corrupted = Rule("image i under corruption i mod 15, severity 1 + (i div 15) mod 5")
    return Spec(
        1000 // a_class,
        transform,
        Part(name, f"{name}/train_{name}", 50000, half="train"),
        Part(name, f"{name}/val_{name}", 1000, _first_a_class(a_class)),
        Part(name, f"{name}/test_{name}", 9000, _after_first_a_class(a_class)),
        _by_source(Part("tin", f"{name}/val_tin", tin[0], _tin(name, True))),
        _by_source(near, Part("tin", f"{name}/test_tin", tin[1], _tin(name, False))),
        _by_source(
            Part("mnist", f"{name}/test_mnist", 70000, half="all"),
            Part("svhn", f"{name}/test_svhn", 26032),
            Part("texture", f"{name}/test_texture", 5640),
            Part("places365", f"{name}/test_places365", places),
        ),
        _by_source(Part("cifar10c", "cifar10/test_cifar10c", 10000, corrupted)) if name == "cifar10" else {},
    )


BENCHMARKS: Mapping[str, Spec] = {
    "cifar10": _cifar(
        "cifar10",
        ImageTransform(32, 32, (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)),
        100,
        Part("cifar100", "cifar10/test_cifar100", 9000, _after_first_a_class(10)),
        (1000, 7793),
        35195,
    ),
    "cifar100": _cifar(
        "cifar100",
        ImageTransform(32, 32, (0.5071, 0.4867, 0.4408), (0.2675, 0.2565, 0.2761)),
        10,
        Part("cifar10", "cifar100/test_cifar10", 10000),
        (972, 6526),
        33773,
    ),
    "imagenet200": _imagenet("imagenet200", 1000, 9000, 2000),
    "imagenet": _imagenet("imagenet", 5000, 45000, 10000),
}
