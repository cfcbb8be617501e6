import pytest
import torch
from torch import Tensor, nn

from spcp import SPCPLinear, Truncation, apply_spcp, find_classifier, remove_spcp


class Net(nn.Module):
    """A hidden layer by one of the usual names, a classifier by none of them."""

    def __init__(self) -> None:
        super().__init__()
        self.out = nn.Linear(8, 3)
        self.fc = nn.Linear(4, 8)

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        return {"logits": self.out(self.fc(x).relu()).float()}


class Untraceable(Net):
    def forward(self, x: Tensor) -> dict[str, Tensor]:
        if x.sum() > 0:
            x = -x
        return super().forward(x)


class Residual(nn.Module):
    """The output is no linear layer's alone."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        return x + self.second(x)


def mlp() -> nn.Sequential:
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3), nn.Dropout())


def test_in_place_on_the_same_parameters() -> None:
    model = mlp()
    before, weight = model[2], model[2].weight
    seen = []
    model[2].register_forward_hook(lambda *_: seen.append(1))
    assert apply_spcp(model, rho_norm=1.0, total_steps=100) is model
    assert model[2] is before
    assert isinstance(model[2], SPCPLinear)
    assert model[2].weight is weight
    assert model[2].truncation.total_steps == 100
    model(torch.rand(2, 4))
    assert seen == [1]


def test_the_optimizer_stays_bound() -> None:
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    apply_spcp(model, rho_norm=1.0, optimizer=optimizer)
    before = model[2].weight.detach().clone()
    model(torch.rand(8, 4)).square().sum().backward()
    optimizer.step()
    assert not torch.equal(model[2].weight, before)
    with pytest.raises(ValueError, match="optimizer does not hold the parameters of '2'"):
        apply_spcp(model := mlp(), rho_norm=1.0, optimizer=torch.optim.SGD(mlp().parameters(), lr=1.0))
    assert type(model[2]) is nn.Linear


def test_all_options_arrive() -> None:
    head = apply_spcp(mlp(), 0.5, total_steps=10, beta=0.7, initial_threshold=3.0, stages="infer", subset=2)[2]
    assert head.truncation == Truncation(0.5, 0.7, 10, 3.0, "infer", 2)
    assert head.threshold.item() == 3.0


def test_remove_gives_back_the_plain_layer() -> None:
    model, x = mlp(), torch.rand(2, 4)
    names, logits = set(model.state_dict()), model.eval()(x)
    apply_spcp(model, rho_norm=1.0).train()(x)
    assert remove_spcp(model) is model
    assert type(model[2]) is nn.Linear
    assert set(model.state_dict()) == names
    assert repr(model[2]) == "Linear(in_features=8, out_features=3, bias=True)"
    assert torch.equal(model.eval()(x), logits)
    with pytest.raises(ValueError, match="no SPCP head to remove"):
        remove_spcp(model)
    apply_spcp(model, rho_norm=1.0).train()(x)


def test_half_precision_and_evaluation_mode_are_kept() -> None:
    model = apply_spcp(mlp().bfloat16().eval(), rho_norm=1.0, initial_threshold=1.0)
    assert not model[2].training
    assert model[2].threshold.dtype == torch.float32
    assert model(torch.rand(2, 4).bfloat16()).dtype == torch.bfloat16


@pytest.mark.parametrize(
    ("model", "name"),
    [
        (nn.Linear(4, 3), ""),
        (mlp(), "2"),
        (nn.Sequential(mlp(), nn.Softmax(1)), "0.2"),
        (Net(), "out"),  # traced: 'fc' is hidden
    ],
)
def test_finds_the_classifier(model: nn.Module, name: str) -> None:
    assert find_classifier(model) == (name, model.get_submodule(name))


def test_timm_names_the_classifier() -> None:
    model = Net()
    model.get_classifier = lambda: model.fc  # type: ignore[assignment]
    assert find_classifier(model)[0] == "fc"


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # torch.compile's
def test_wrapped_models() -> None:
    wrapped = nn.DataParallel(mlp())
    assert find_classifier(wrapped) == ("module.2", wrapped.module[2])
    assert find_classifier(wrapped, "2") == find_classifier(wrapped, "module.2") == find_classifier(wrapped)
    assert find_classifier(torch.compile(mlp()))[1].out_features == 3


class Heads(nn.Module):
    """Several outputs: none of them is the classifier unless the user names it."""

    def __init__(self) -> None:
        super().__init__()
        self.heads = nn.ModuleDict({"digit": nn.Linear(4, 10), "parity": nn.Linear(4, 2)})

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        return {name: head(x) for name, head in self.heads.items()}


class Functional(nn.Module):
    """The classifier is no layer, and a hidden layer is."""

    def __init__(self) -> None:
        super().__init__()
        self.hidden, self.weight = nn.Linear(4, 4), nn.Parameter(torch.randn(3, 4))

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.linear(self.hidden(x), self.weight)


class Excitation(nn.Module):
    """Cannot be traced, and its only linear layer is in the middle."""

    def __init__(self) -> None:
        super().__init__()
        self.squeeze, self.last = nn.Linear(4, 4), nn.Conv1d(4, 3, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.squeeze(x)[..., None]) if x.sum() > 0 else x


def test_usual_names_where_tracing_fails() -> None:
    assert find_classifier(Untraceable())[0] == "fc"
    assert find_classifier(Untraceable(), "out")[0] == "out"
    model = Untraceable()
    model.head = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 2))
    with pytest.raises(ValueError, match=r"2 linear layers that may be its classifier, among them 'fc', 'head\.1'"):
        find_classifier(model)


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (nn.Sequential(nn.Linear(4, 3), nn.Conv1d(1, 1, 1)), "No nn.Linear makes the logits of Sequential"),
        (nn.Sequential(nn.Flatten()), "No nn.Linear makes the logits"),
        (Residual(), "2 linear layers .* 'first', 'second'; name one"),
        (Heads(), r"2 linear layers .* 'heads\.digit', 'heads\.parity'; name one"),
        (Functional(), "No nn.Linear makes the logits of Functional"),
        (Excitation(), "No nn.Linear makes the logits of Excitation"),
    ],
)
def test_the_error_explains_why_there_is_no_classifier(model: nn.Module, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        apply_spcp(model, rho_norm=1.0)


def test_bad_calls_are_named_and_change_nothing() -> None:
    model = mlp()
    with pytest.raises(ValueError, match=r"no module 'fc'; its linear layers are '0', '2'"):
        apply_spcp(model, 1.0, classifier="fc")
    with pytest.raises(ValueError, match=r"'1' is a ReLU; it must be an nn\.Linear"):
        apply_spcp(model, 1.0, classifier="1")
    with pytest.raises(ValueError, match="rho_norm is 4; it must lie between 0 and 3"):
        apply_spcp(model, 4)
    assert type(model[2]) is nn.Linear
    apply_spcp(model, 1.0)
    with pytest.raises(ValueError, match="already applied to '2'; call remove_spcp"):
        apply_spcp(model, 1.0)


def test_subclasses_of_the_linear_layer() -> None:
    class Renamed(nn.Linear):
        def forward(self, input: Tensor) -> Tensor:
            return nn.functional.linear(input, self.weight, self.bias)

    class Scaled(nn.Linear):
        def forward(self, input: Tensor) -> Tensor:
            return 2 * super().forward(input)

    model = apply_spcp(nn.Sequential(Renamed(4, 3)), 1.0)
    assert type(model[0]) is SPCPLinear
    assert type(remove_spcp(model)[0]) is Renamed

    class Adapted(nn.Linear):
        """The same as a linear layer until its adapter has learned something."""

        def __init__(self) -> None:
            super().__init__(4, 3)
            self.adapter = nn.Parameter(torch.zeros(3, 4))

        def forward(self, input: Tensor) -> Tensor:
            return nn.functional.linear(input, self.weight + self.adapter, self.bias)

    normed = nn.utils.parametrizations.weight_norm(nn.Linear(4, 3))
    for other in (Scaled(4, 3), Adapted(), normed):
        with pytest.raises(TypeError, match=r"does more than an nn\.Linear"):
            apply_spcp(nn.Sequential(other), 1.0, classifier="0")
