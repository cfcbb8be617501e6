"""A file decides as the detector does, in onnxruntime, and whatever it cannot do is one sentence."""

from __future__ import annotations

import copy
import json
import math
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
import training_run
from networks.test_networks import SMALL
from others import imported
from PIL import Image
from scores.test_scores import NAMES, Together, make_data, make_head
from torch import Tensor, nn

from spcp import Detector, Monitor, ScoredModel, SPCPLinear, Truncation, apply_spcp, config_for, data, train
from spcp.calibration import calibrate_run
from spcp.conformal import p_values
from spcp.contributions import clip_contributions
from spcp.data.images import eval_pixels
from spcp.data.memory import finish
from spcp.errors import InputError
from spcp.export import calibrate_file, quantise
from spcp.export.graph import onnx_graph
from spcp.exported import METADATA, OUTPUTS, ExportedDetector
from spcp.methods import METHODS
from spcp.monitoring import Reference
from spcp.networks import mlp
from spcp.networks.densenet import DenseNet
from spcp.networks.wideresnet import WideResNet
from spcp.runs import Run
from spcp.scores import build_score
from spcp.shipping import calibrate_exported, export_run, flagged_by_file

pytestmark = pytest.mark.filterwarnings("ignore:.*SPCP.*:UserWarning", "ignore::DeprecationWarning")


def network(seed: int = 0) -> nn.Sequential:
    torch.manual_seed(seed)
    net = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 3))
    apply_spcp(net, rho_norm=1.0, total_steps=5)
    for _ in range(5):
        net(torch.randn(64, 4))
    return net.eval()


def calibrated(score: str = "energy", **options: Any) -> Detector:
    detector = Detector(network(), score).fit([(torch.randn(300, 4), torch.randint(3, (300,)))])
    return detector.calibrate(torch.randn(400, 4), alpha=0.1, **options)


def unusual() -> Tensor:
    """Inputs from usual to huge, one without anything on, and one that is not a number."""
    x = torch.randn(60, 4) * torch.logspace(-1, 3, 60)[:, None]
    x[7], x[9] = 0.0, torch.nan
    return x


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.manual_seed(0)
    return calibrated().export(tmp_path_factory.mktemp("export") / "energy.onnx", torch.randn(64, 4))


@pytest.fixture(scope="module")
def plain_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 3))
    detector = Detector(net, "energy").calibrate(torch.randn(99, 4))
    return detector.export(tmp_path_factory.mktemp("plain") / "d.onnx", torch.randn(8, 4))


def session(model: Any) -> onnxruntime.InferenceSession:
    return onnxruntime.InferenceSession(model.SerializeToString())


# What a file decides


@pytest.mark.parametrize("by_class", [False, True])
def test_a_file_decides_as_the_detector(tmp_path: Path, by_class: bool) -> None:
    detector, x = calibrated("consensus-logits", by_class=by_class), unusual()
    inputs = data.Inputs(("ant", "bee", "fly"), (4,), None)
    path = detector.export(tmp_path / "d.onnx", torch.randn(64, 4), inputs=inputs, notes={"author": "me"})
    exported, expected = ExportedDetector.open(path, threads=1), detector.detect(x)
    for rows in (slice(0, 60), slice(0, 1), slice(5, 12), slice(0, 0)):
        found = exported.detect(x[rows].numpy())
        assert np.array_equal(found.predictions, expected.predictions[rows])
        assert np.array_equal(found.is_ood, expected.is_ood[rows])
        np.testing.assert_allclose(found.logits, detector.model.outputs(x[rows]).logits.detach(), rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(found.scores, expected.scores[rows], rtol=1e-3, atol=1e-3)
        of_these = detector.decide(torch.from_numpy(found.predictions), torch.from_numpy(found.scores))
        assert np.array_equal(found.p_values, of_these.p_values)  # to the bit
    assert exported.detect(x[9:10].numpy()).is_ood.all()  # not a number
    assert exported.metadata["author"] == "me"
    assert (exported.alpha, exported.class_names) == (0.1, ["ant", "bee", "fly"])
    assert exported.metadata["check"] < 1e-2
    assert not exported.takes_pixels
    thresholds = exported.metadata["threshold"]
    assert np.allclose(thresholds, detector.score_thresholds if by_class else detector.score_thresholds[0])


def test_p_values_at_ties_and_at_infinity(file: Path) -> None:
    """Scores that equal calibration scores count them; the file's table gives what `p_values` gives."""
    model = onnx.load(file)
    kept = onnx.utils.Extractor(model).extract_model(["score"], ["p_value", "is_ood"])
    (table,) = (onnx.numpy_helper.to_array(t).copy() for t in model.graph.initializer if t.name == "calibration")
    scores = np.concatenate([table[0, :9], table[0, -3:], [np.inf, -np.inf, np.nan, 0.0]]).astype(np.float32)
    p, is_ood = session(kept).run(None, {"score": scores})
    assert np.array_equal(p, p_values(torch.from_numpy(scores), torch.from_numpy(table[0])))
    assert np.array_equal(is_ood, ~(scores >= ExportedDetector.open(file).metadata["threshold"]))


class Several(nn.ModuleList):
    """The outputs of several modules: one graph, because each graph takes seconds to write."""

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        return tuple(module(x) for module in self)


def in_one_graph(names: Sequence[str], module: nn.Module, x: Tensor) -> dict[str, tuple[np.ndarray, Tensor]]:
    """By name, what onnxruntime makes of a batch, and what torch does."""
    model = onnx_graph(module.eval(), tuple(x.shape[1:]), "input", [f"output_{i}" for i in range(len(names))])
    assert {entry.domain for entry in model.opset_import} == {""}  # standard operators only
    with torch.no_grad():
        expected = module(x)
    return dict(zip(names, zip(session(model).run(None, {"input": x.numpy()}), expected, strict=True), strict=True))


@pytest.fixture(scope="module")
def all_scores() -> dict[str, tuple[np.ndarray, Tensor]]:
    head = make_head(truncates=True)
    odd = torch.tensor([[math.nan], [math.inf]]).expand(2, head.in_features)
    return in_one_graph(NAMES, Together(head), torch.cat([make_data(head, 40, 2).features, odd]))


@pytest.mark.parametrize("name", NAMES)
def test_every_score_in_onnxruntime(all_scores: dict[str, tuple[np.ndarray, Tensor]], name: str) -> None:
    found, expected = all_scores[name]
    rough = 1e-3 if name.startswith(("consensus", "two-views")) else 1e-4  # made of p-values, between close samples
    np.testing.assert_allclose(found, expected, rtol=rough, atol=rough)
    assert np.isnan(found).tolist() == [False] * 40 + [True] * 2  # features that are not finite


class Networks(nn.Module):
    """Every network of the zoo, on slices of a flat input; the deepest with fewer of the same blocks."""

    def __init__(self) -> None:
        super().__init__()
        self.networks = nn.ModuleDict({name: build() for name, (build, _, _) in SMALL.items()})
        self.networks["densenet100"] = DenseNet(7, layers=2, growth=4, channels=3)
        self.networks["wideresnet28"] = WideResNet(7, depth=10, width=1, channels=3, dropout=0.1)

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        shapes = [shape for _, shape, _ in SMALL.values()]
        inputs = [x[:, : torch.Size(shape).numel()].reshape(-1, *shape) for shape in shapes]
        return tuple(network(part) for network, part in zip(self.networks.values(), inputs, strict=True))


@pytest.fixture(scope="module")
def all_networks() -> dict[str, tuple[np.ndarray, Tensor]]:
    torch.manual_seed(0)
    module, x = Networks(), torch.randn(3, 3 * 96 * 96)
    with torch.no_grad():
        module(x)  # in training mode: normalisation layers see something
    return in_one_graph(list(SMALL), module, x)


@pytest.mark.parametrize("name", SMALL)
def test_every_network_in_onnxruntime(all_networks: dict[str, tuple[np.ndarray, Tensor]], name: str) -> None:
    found, expected = all_networks[name]
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)


def test_the_truncating_head_in_onnxruntime() -> None:
    """Of features of any sign and size, with contributions at the threshold, above it, and a negative threshold."""
    torch.manual_seed(0)
    h = torch.randn(40, 30) * torch.logspace(-2, 6, 40)[:, None]
    h[3], h[4] = 0.0, torch.nan
    heads = Several(SPCPLinear(30, 7, bias, truncation=Truncation(rho_norm=1.0)) for bias in (True, False, True))
    thresholds = (0.1, float(h[20, 0] * heads[1].weight[0, 0].detach()), -0.2)  # type: ignore[index]
    for head, threshold in zip(heads, thresholds, strict=True):
        head.threshold.fill_(threshold)  # type: ignore[operator]
    found = in_one_graph(["positive", "tie", "negative"], heads, h)
    for (z, _), head, threshold in zip(found.values(), heads, thresholds, strict=True):
        weights = [None if w is None else w.detach().double() for w in (head.weight, head.bias)]
        exact = clip_contributions(h.double(), *weights, float(np.float32(threshold)))  # type: ignore[arg-type]
        scale = 1 + h.double().abs() @ weights[0].abs().t() + 30 * abs(threshold)  # type: ignore[union-attr]
        apart = (torch.from_numpy(z).double() - exact).abs() / scale
        assert apart.nan_to_num(0).max() < 1e-6
        assert np.array_equal(np.isnan(z), exact.isnan())


METHODS_WITH_OUTPUTS = ("t2fnorm", "cider", "mos", "snn", "umap")
OF_A_DETECTOR = ("prediction", "score", "is_ood")


class Detectors(Several):
    """The outputs of several detectors."""

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        return tuple(output for outputs in super().forward(x) for output in outputs)


def trained_by(name: str) -> Detector:
    torch.manual_seed(0)
    net, method = mlp(4, inputs=6, width=16), METHODS[name][0]()
    method.prepare(net, 1)
    score = build_score(method.score, **method.score_options)
    detector = Detector(ScoredModel(net, method), score).fit([(torch.randn(80, 6), torch.arange(80) % 4)])
    return detector.calibrate(torch.randn(40, 6), alpha=0.2)


@pytest.fixture(scope="module")
def all_methods() -> tuple[Detectors, Tensor, dict[str, tuple[np.ndarray, Tensor]]]:
    detectors, x = Detectors(map(trained_by, METHODS_WITH_OUTPUTS)), torch.randn(9, 6) * 2
    names = [f"{name}, {output}" for name in METHODS_WITH_OUTPUTS for output in OF_A_DETECTOR]
    return detectors, x, in_one_graph(names, detectors, x)


@pytest.mark.parametrize("name", METHODS_WITH_OUTPUTS)
def test_methods_with_special_outputs(
    all_methods: tuple[Detectors, Tensor, dict[str, tuple[np.ndarray, Tensor]]], name: str
) -> None:
    detectors, x, outputs = all_methods
    detector: Any = detectors[METHODS_WITH_OUTPUTS.index(name)]
    expected = detector.detect(x)
    prediction, score, is_ood = (outputs[f"{name}, {output}"][0] for output in OF_A_DETECTOR)
    assert np.array_equal(prediction, expected.predictions)
    np.testing.assert_allclose(score, expected.scores, rtol=1e-4, atol=1e-4)
    assert np.array_equal(is_ood, expected.is_ood)


def vit() -> nn.Module:
    transformers = imported("transformers")
    small = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
    return transformers.ViTForImageClassification(transformers.ViTConfig(**small, image_size=32, num_labels=5))


def shallow(resnet: Any) -> nn.Module:
    return resnet.ResNet(resnet.BasicBlock, (1, 1, 1, 1), num_classes=5)


@pytest.mark.filterwarnings("ignore::FutureWarning")
@pytest.mark.parametrize(
    "build",
    [
        lambda: shallow(imported("torchvision.models.resnet")),
        lambda: imported("timm").create_model("test_resnet", num_classes=5),
        vit,
    ],
    ids=["torchvision", "timm", "hugging-face"],
)
def test_networks_of_others(library: torch.library.Library, tmp_path: Path, build: Callable[[], nn.Module]) -> None:
    size = 32
    x = torch.randn(40, 3, size, size)
    net = apply_spcp(build(), rho_norm=0.5).eval()
    detector = Detector(net, "energy").calibrate(x, alpha=0.1)
    path = detector.export(tmp_path / "d.onnx", x[:8])
    found = ExportedDetector.open(path).detect(x[:3].numpy())
    np.testing.assert_allclose(found.scores, detector.detect(x[:3]).scores, rtol=1e-4, atol=1e-4)


# Programs of torch.export


def test_a_program_of_torch_export(tmp_path: Path) -> None:
    detector, x = calibrated("consensus", by_class=True), torch.randn(64, 4)
    path = detector.export(tmp_path / "d.pt2", x)
    assert x[0].numpy().tobytes() not in path.read_bytes()  # no sample is in it
    files = {"spcp.json": ""}
    program = torch.export.load(str(path), extra_files=files).module()
    assert json.loads(files["spcp.json"])["check"] < 1e-3
    expected = detector.detect(x[:5])
    with torch.no_grad():
        predictions, _, scores, p, is_ood = program(x[:5])
    assert torch.equal(predictions, expected.predictions)
    torch.testing.assert_close(scores, expected.scores, rtol=1e-3, atol=1e-3)
    assert torch.equal(p, detector.decide(predictions, scores).p_values)
    assert torch.equal(is_ood, expected.is_ood)


# What cannot be exported


class Branching(nn.Sequential):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(-x if x.sum() > 0 else x)


def branching() -> Detector:
    return Detector(Branching(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3)), "energy", classifier="2").calibrate(
        torch.randn(99, 4)
    )


IMPOSSIBLE: dict[str, tuple[Callable[[], Detector], str, str]] = {
    "uncalibrated": (lambda: Detector(network(), "energy"), "d.onnx", "no threshold yet; calibrate it"),
    "gradients": (
        lambda: Detector(network(), "odin").calibrate(torch.randn(99, 4)),
        "d.onnx",
        "odin needs gradients of its inputs, which no file computes; calibrate another score",
    ),
    "branches": (branching, "d.onnx", "cannot be written as one graph .* replace such branches by torch.where"),
    "half": (
        lambda: Detector(network().bfloat16(), "energy").calibrate(torch.randn(99, 4).bfloat16()),
        "d.onnx",
        r"computes in bfloat16; call network\.float\(\)",
    ),
    "suffix": (calibrated, "d.bin", r"d\.bin: must end in \.onnx, or in \.pt2"),
}


@pytest.mark.parametrize("case", IMPOSSIBLE)
def test_what_cannot_be_exported_is_one_sentence(tmp_path: Path, case: str) -> None:
    build, name, message = IMPOSSIBLE[case]
    with pytest.raises(InputError, match=message) as caught:
        build().export(tmp_path / name, torch.randn(8, 4))
    assert "\n" not in str(caught.value)
    assert not list(tmp_path.iterdir())


def test_a_combination_that_onnx_lacks(tmp_path: Path) -> None:
    score = build_score("consensus", members=["energy", "msp"], combine="stouffer")
    detector = Detector(network(), score).calibrate(torch.randn(200, 4))
    with pytest.raises(InputError, match=r"ONNX cannot express the network or the score .*ndtri.*; export a \.pt2"):
        detector.export(tmp_path / "d.onnx", torch.randn(8, 4))
    detector.export(tmp_path / "d.pt2", torch.randn(8, 4))


def test_a_file_that_decides_otherwise_is_not_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    detector = calibrated()
    shifted = lambda self, h, z, head: torch.logsumexp(z, 1) + (0.01 if torch.compiler.is_compiling() else 0)  # noqa: E731
    monkeypatch.setattr(type(detector.score), "score", shifted)
    with pytest.raises(InputError, match=r"the exported energy decides otherwise than the detector: .* scores by 0\.0"):
        detector.export(tmp_path / "d.onnx", torch.randn(8, 4))
    assert not list(tmp_path.iterdir())


def test_samples_and_preprocessing_must_fit(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="samples must be a batch of prepared inputs"):
        calibrated().export(tmp_path / "d.onnx", torch.randn(0, 4))
    with pytest.raises(InputError, match="only images can be prepared inside of a file"):
        calibrated().export(tmp_path / "d.onnx", torch.randn(3, 4), preprocessing=True)


# Files that were not exported, or were changed


def changed(file: Path, change: Callable[[Any], object]) -> bytes:
    model = onnx.load(file)
    change(model)
    return model.SerializeToString()


def metadata(**changes: Any) -> Callable[[Any], object]:
    def change(model: Any) -> None:
        about = json.loads(model.metadata_props[-1].value)
        model.metadata_props[-1].value = json.dumps(about | changes)

    return change


def elsewhere(tensor: Any) -> None:
    tensor.ClearField("raw_data")
    tensor.data_location = onnx.TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value="../../../etc/passwd")


def constant_elsewhere(model: Any) -> None:
    value = onnx.numpy_helper.from_array(np.zeros(3, np.float32))
    elsewhere(value)
    then = onnx.helper.make_graph([onnx.helper.make_node("Constant", [], ["inner"], value=value)], "then", [], [])
    model.graph.node.append(onnx.helper.make_node("If", ["is_ood"], [], then_branch=then))


HOSTILE: dict[str, tuple[Callable[[Path], bytes], str]] = {
    "empty": (lambda file: b"", "without a detector"),
    "text": (lambda file: b"not a model, but a note\n" * 9, "not an ONNX file, or is damaged"),
    "zeros": (lambda file: bytes(99), "not an ONNX file, or is damaged"),
    "cut": (lambda file: file.read_bytes()[:-100], "not an ONNX file, or is damaged"),
    "endless": (lambda file: b"\xff" * 50, "not an ONNX file, or is damaged"),
    "deep": (lambda file: nested(), "not an ONNX file, or is damaged"),
    "no metadata": (
        lambda file: changed(file, lambda model: model.ClearField("metadata_props")),
        "is an ONNX file without a detector",
    ),
    "not JSON": (
        lambda file: changed(file, lambda model: setattr(model.metadata_props[-1], "value", "{")),
        "its metadata cannot be read",
    ),
    "a list": (
        lambda file: changed(file, lambda model: setattr(model.metadata_props[-1], "value", "[]")),
        "its metadata cannot be read",
    ),
    "alpha": (lambda file: changed(file, metadata(alpha=2.0)), "alpha = 2.0 in its metadata is not valid"),
    "names": (lambda file: changed(file, metadata(class_names=[1])), r"class_names = \[1\] in its metadata"),
    "newer": (lambda file: changed(file, metadata(format=2)), "is of format 2, and this version reads 1; update"),
    "outside": (
        lambda file: changed(file, lambda model: elsewhere(model.graph.initializer[0])),
        "its data lie in other files, which are not read",
    ),
    "outside, nested": (lambda file: changed(file, constant_elsewhere), "its data lie in other files"),
    "outputs": (
        lambda file: changed(file, lambda model: model.graph.output.pop()),
        "its outputs are not those of a detector",
    ),
    "graph": (
        lambda file: changed(file, lambda model: setattr(model.graph.node[0], "op_type", "NoSuch")),
        "onnxruntime cannot load it",
    ),
}


def nested() -> bytes:
    """A graph in an attribute of a node of a graph, and so on."""
    message = b""
    for _ in range(200):
        for field in (6, 5, 1):
            message = bytes([field << 3 | 2]) + varint(len(message)) + message
    return bytes([7 << 3 | 2]) + varint(len(message)) + message


def varint(value: int) -> bytes:
    return bytes([value & 127 | 128]) + varint(value >> 7) if value > 127 else bytes([value])


@pytest.mark.parametrize("case", HOSTILE)
def test_hostile_files_are_one_sentence(file: Path, tmp_path: Path, case: str) -> None:
    make, message = HOSTILE[case]
    path = tmp_path / "x.onnx"
    path.write_bytes(make(file))
    with pytest.raises(InputError, match=rf"^\S*x\.onnx: .*{message}") as caught:
        ExportedDetector.open(path)
    assert "\n" not in str(caught.value)


def test_no_file_and_wrong_samples(file: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"nothing\.onnx: there is no such file; name a file that spcp export wrote"):
        ExportedDetector.open(tmp_path / "nothing.onnx")
    exported = ExportedDetector.open(file)
    for samples in (np.zeros((3, 5), np.float32), np.zeros(4, np.float32), np.zeros((3, 4), np.uint8)):
        with pytest.raises(InputError, match=r"but the detector takes float32 \(batch, 4\); prepare them so"):
            exported.detect(samples)
    assert exported.detect(np.zeros((2, 4))).scores.dtype == np.float32  # float64 is taken


# Runs: preprocessing, int8, banks, and the calibration of a file


@pytest.fixture(scope="module")
def corners() -> data.Benchmark:
    return training_run.benchmark()


@pytest.fixture(scope="module")
def run(corners: data.Benchmark, tmp_path_factory: pytest.TempPathFactory) -> Run:
    made = train(training_run.config("spcp", 2), tmp_path_factory.mktemp("corners") / "run", benchmark=corners)
    calibrate_run(made, "knn", alpha=0.1, benchmark=corners)
    return made


def test_a_file_that_prepares_images(run: Run, corners: data.Benchmark, tmp_path: Path) -> None:
    """As Pillow does: to the bit where nothing is resized, and else but for a few pixels by one level."""
    path = export_run(run, tmp_path / "d.onnx", preprocessing=True, benchmark=corners)
    exported, transform = ExportedDetector.open(path), corners.transform
    assert exported.takes_pixels
    assert exported.metadata["preprocessing"] == "inside"
    assert exported.metadata["preprocessing_check"] == {"mean": 0.0, "largest": 0.0}
    assert isinstance(transform, data.ImageTransform)
    rng = np.random.default_rng(0)
    for height, width in ((12, 12), (30, 41), (9, 7)):
        small = Image.fromarray(rng.integers(0, 256, (8, 8), dtype=np.uint8))
        image = np.asarray(small.resize((width, height), Image.Resampling.BICUBIC))
        x = finish(
            torch.from_numpy(eval_pixels(Image.fromarray(image), transform).copy()).permute(2, 0, 1)[None], transform
        )
        expected = run.detector().model.outputs(x.contiguous()).logits.detach().numpy()
        found = exported.detect(image[None, :, :, None])
        np.testing.assert_allclose(found.logits, expected, atol=1e-5 if height == 12 else 0.05)
    with pytest.raises(InputError, match=r"takes uint8 \(batch, any, any, 1\)"):
        exported.detect(np.zeros((1, 12, 12, 3), np.uint8))


@pytest.mark.parametrize("int8", ["static", "dynamic"])
def test_a_file_in_int8_is_calibrated_itself(
    run: Run, corners: data.Benchmark, tmp_path: Path, int8: Any, capfd: pytest.CaptureFixture[str]
) -> None:
    path = export_run(run, tmp_path / "d.onnx", int8=int8, benchmark=corners)
    model, exported = onnx.load(path), ExportedDetector.open(path)
    kinds = {node.op_type for node in model.graph.node}
    assert kinds & {"QuantizeLinear", "ConvInteger", "DynamicQuantizeLinear"}
    assert exported.metadata["int8"] == int8
    x = torch.cat([x for x, _ in corners.loader("val", batch_size=40)]).numpy()
    scores = np.sort(exported.detect(x).scores)
    assert exported.metadata["threshold"] == scores[3]  # the floor(0.1 * 41)-th of its own 40 scores
    assert exported.detect(x).is_ood.sum() == 3
    detector = run.detector()
    assert not np.array_equal(scores, np.sort(detector.detect(torch.from_numpy(x)).scores))
    (test,) = (row for row in flagged_by_file(exported, corners) if row["dataset"] == "test")
    assert test["accuracy"] > 0.5
    assert capfd.readouterr() == ("", "")
    assert not any("onnxruntime" in entry for entry in sys.path)  # its folders would hide the user's modules


@pytest.mark.parametrize("int8", ["static", "dynamic"])
def test_a_plain_head_in_int8(plain_file: Path, tmp_path: Path, int8: Any) -> None:
    """The quantiser transposes the head's weights, though it is to leave the head as it is."""
    path = tmp_path / "d.onnx"
    path.write_bytes(plain_file.read_bytes())
    x = torch.randn(200, 4).numpy()
    quantise(path, int8, [x])
    before, after = (ExportedDetector.open(file).detect(x) for file in (plain_file, path))
    assert (before.predictions == after.predictions).mean() > 0.9
    assert 0 < np.abs(before.scores - after.scores).max() < 0.2


def test_a_changed_file_is_calibrated_again(run: Run, corners: data.Benchmark, tmp_path: Path) -> None:
    """As after other tools changed its weights: p-values and threshold are those of its own scores."""
    path = export_run(run, tmp_path / "d.onnx", benchmark=corners)
    before = ExportedDetector.open(path).metadata["threshold"]
    model = onnx.load(path)
    for tensor in model.graph.initializer:
        if tensor.name.endswith("weight"):
            tensor.CopyFrom(onnx.numpy_helper.from_array(1.5 * onnx.numpy_helper.to_array(tensor), tensor.name))
    path.write_bytes(model.SerializeToString())
    exported = calibrate_exported(path, run, corners)
    x = torch.cat([x for x, _ in corners.loader("val", batch_size=40)]).numpy()
    found = exported.detect(x)
    assert exported.metadata["threshold"] == np.sort(found.scores)[3] != before
    table = torch.from_numpy(np.sort(found.scores))
    assert np.array_equal(found.p_values, p_values(torch.from_numpy(found.scores), table))
    with pytest.raises(InputError, match="there are no samples to calibrate it on"):
        calibrate_file(path, [])


def test_a_thinner_bank_is_calibrated_again(run: Run, corners: data.Benchmark, tmp_path: Path) -> None:
    whole, thin = (export_run(run, tmp_path / f"{n}.onnx", bank=n, benchmark=corners) for n in (240, 24))
    exported = ExportedDetector.open(thin)
    assert thin.stat().st_size < whole.stat().st_size
    assert exported.metadata["options"] == {"k": 5}  # 50 of 240
    x = torch.cat([x for x, _ in corners.loader("val", batch_size=40)]).numpy()
    assert exported.metadata["threshold"] == pytest.approx(np.sort(exported.detect(x).scores)[3], rel=1e-4)
    with pytest.raises(InputError, match="--bank 0: must be at least 1"):
        export_run(run, tmp_path / "d.onnx", bank=0, benchmark=corners)


def test_runs_that_cannot_be_exported(run: Run, corners: data.Benchmark, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"d\.pt2: int8 is for ONNX files; name one that ends in \.onnx"):
        export_run(run, tmp_path / "d.pt2", int8="static", benchmark=corners)
    fewer = copy.copy(corners)
    object.__setattr__(fewer, "val", data.take(corners.val, range(30)))  # type: ignore[type-var, arg-type]
    with pytest.raises(InputError, match="was calibrated on 40 other samples than the validation data of corners"):
        export_run(run, tmp_path / "d.onnx", benchmark=fewer)


# Without torch, and without this library

ALONE = """
import sys, json
class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {blocked}:
            raise ImportError(name + " is blocked")
sys.meta_path.insert(0, Blocked())
"""
PLAIN_RUNTIME = """
import numpy, onnxruntime
session = onnxruntime.InferenceSession(sys.argv[1])
names = [output.name for output in session.get_outputs()]
found = dict(zip(names, session.run(None, {"input": numpy.load(sys.argv[2])})))
about = json.loads(session.get_modelmeta().custom_metadata_map["spcp"])
print(json.dumps({name: found[name].tolist() for name in names} | {"classes": about["class_names"]}))
"""
OWN_RUNTIME = """
import numpy
from spcp.exported import ExportedDetector
detector = ExportedDetector.open(sys.argv[1])
found = detector.detect(numpy.load(sys.argv[2]))
fields = dict(zip(["prediction", "logits", "score", "p_value", "is_ood"], found))
print(json.dumps({name: value.tolist() for name, value in fields.items()} | {"classes": detector.class_names}))
"""


def test_the_same_verdicts_without_torch_and_without_spcp(tmp_path: Path) -> None:
    """Trained on the embedded data, exported, and run in a process in which neither can be imported."""
    digits = data.load_benchmark("digits")
    config = config_for("digits", "spcp", epochs=1, width=4, images=400, batch_size=40, save_every=0.0)
    run = train(config, tmp_path / "run", benchmark=digits.fewer(400))
    calibrate_run(run, alpha=0.05, benchmark=digits)
    path = export_run(run, benchmark=digits)
    assert path == tmp_path / "run" / "detector.onnx"
    x = torch.cat([next(iter(digits.loader(role, batch_size=60)))[0] for role in ("test", "far/textures")])
    np.save(tmp_path / "x.npy", x.numpy())
    expected = run.detector().detect(x)
    for blocked, script, options in (
        ({"torch", "spcp"}, PLAIN_RUNTIME, ["-I"]),
        ({"torch"}, OWN_RUNTIME, []),
    ):
        code = ALONE.replace("{blocked}", repr(blocked)) + script
        command = [sys.executable, *options, "-c", code, str(path), str(tmp_path / "x.npy")]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert (done.returncode, done.stderr) == (0, "")
        found = json.loads(done.stdout)
        assert found["prediction"] == expected.predictions.tolist()
        assert found["is_ood"] == expected.is_ood.tolist()
        assert found["classes"] == list(digits.class_names)
        np.testing.assert_allclose(found["p_value"], expected.p_values, atol=0.005)
    assert 0 < expected.is_ood.double().mean() < 1


def test_names_are_those_of_the_interface(file: Path) -> None:
    model = onnx.load(file)
    assert [output.name for output in model.graph.output] == list(OUTPUTS)
    assert [entry.key for entry in model.metadata_props] == [METADATA]
    onnx.checker.check_model(model, full_check=True)


def test_a_monitor_knows_an_exported_file(file: Path) -> None:
    detector = ExportedDetector.open(file)
    reference = Reference.of(file)
    assert sum(reference.class_counts) == sum(reference.samples) == detector.metadata["calibration_samples"]
    assert reference.detector == Reference.of(detector).detector
    assert Monitor(file).update([0.5], classes=[0]) == []
