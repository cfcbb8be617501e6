from __future__ import annotations

import json

import pytest
import torch

from spcp import Truncation, config_for, data
from spcp.config import DEFAULTS, Config, build_method, build_network, rho_norm_for
from spcp.errors import InputError


def test_the_papers_settings() -> None:
    spcp = config_for("cifar10", "spcp")
    assert (spcp.epochs, spcp.batch_size, spcp.lr, spcp.weight_decay, spcp.truncation.rho_norm) == (
        100,
        128,
        0.1,
        5e-4,
        3.0,
    )
    assert config_for("cifar100", "spcp").truncation.rho_norm == 0.5
    assert config_for("imagenet200", "spcp").truncation.rho_norm == 0.4
    assert rho_norm_for("imagenet200", "logitnorm") == 2.0
    assert config_for("imagenet200", "logitnorm").truncation == Truncation()
    assert config_for("imagenet200", "logitnorm", rho_norm=2.0).truncation == Truncation(2.0, subset=16)
    assert config_for("imagenet200", "spcp", rho_norm=0).truncation == Truncation()
    cider = config_for("cifar10", "cider")
    assert (cider.batch_size, cider.lr, cider.warmup, cider.weight_decay) == (512, 0.5, 10, 1e-4)
    assert config_for("cifar100", "cider").options == {"momentum": 0.5}
    assert config_for("CIFAR10", "spcp") == spcp
    assert config_for("imagenet200", "spcp").truncation == Truncation(0.4, subset=16)
    assert config_for("cifar10", "cider", epochs=20).warmup == 2
    assert config_for("cifar100", "snn").options["share"] == 0.05
    assert build_method(Config(method="l2")).options["penalty"] == 1e-3
    with pytest.raises(InputError, match="spcp: needs a truncation with rho_norm above 0"):
        build_method(Config(method="spcp"))
    with pytest.raises(InputError, match="fixed: A fixed threshold"):
        config_for("digits", "fixed")
    assert Config.from_json(json.loads(json.dumps(spcp.as_json()))) == spcp


def test_unknown_names() -> None:
    with pytest.raises(InputError, match="no method 'spcq'; there are plain, spcp"):
        config_for("digits", "spcq")
    with pytest.raises(InputError, match=r"a run has no setting 'epoch'; there are architecture, .* rho_norm"):
        config_for("digits", epoch=3)
    with pytest.raises(InputError, match="architecture = 3 must be a dictionary, or nothing"):
        Config(architecture=3).check()  # type: ignore[arg-type]
    with pytest.raises(InputError, match=r"truncation: .*rho"):
        Config.from_json(Config().as_json() | {"truncation": {"rho": 1}})


def arrays(shape: tuple[int, ...], num_classes: int) -> data.Benchmark:
    x = torch.randint(256, (4 * num_classes, *shape), dtype=torch.uint8) if len(shape) == 3 else torch.rand(8, *shape)
    samples = (x, torch.arange(len(x)) % num_classes)
    return data.make_benchmark({"train": samples, "test": samples})


@pytest.mark.parametrize(
    ("shape", "num_classes", "network", "rho_norm"),
    [
        ((3, 32, 32), 2, "resnet18", 0.2),
        ((3, 96, 96), 3, "resnet18_224", 0.3),
        ((1, 28, 28), 12, "resnet18", DEFAULTS["digits"]["rho_norm"]),
        ((16,), 4, "mlp", 0.4),
    ],
)
def test_defaults_fit_the_users_data(shape: tuple[int, ...], num_classes: int, network: str, rho_norm: float) -> None:
    benchmark = arrays(shape, num_classes)
    config = config_for(benchmark, "spcp")
    assert (config.network, config.truncation.rho_norm) == (network, rho_norm)
    assert rho_norm_for(benchmark) == rho_norm
    assert config_for(benchmark).truncation == Truncation()
    assert config_for(benchmark, "spcp", rho_norm=0.1, network="cnn").network == "cnn"
    built = build_network(config, benchmark.inputs())
    assert built.num_classes == num_classes


def test_code_is_built_only_when_the_caller_names_it() -> None:
    config, inputs = Config(network="spcp.networks:cnn"), data.Inputs(tuple("ab"), (1, 12, 12), None)
    for code in (None, "spcp.networks:mlp"):
        with pytest.raises(InputError, match=r"spcp.networks:cnn: is code, which a file asks to run; if you trust it"):
            build_network(config, inputs, code=code)
    assert build_network(config, inputs, code="spcp.networks:cnn").num_classes == 2
    with pytest.raises(InputError, match="has no width to set"):
        build_network(Config(network="spcp.networks:cnn", width=4), inputs, code="spcp.networks:cnn")
