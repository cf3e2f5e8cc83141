"""Modules kept in fp32 under every backend."""

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ampcompare.precision import REGISTRY, build_precision
from ampcompare.precision.base import Precision
from ampcompare.precision.half_weights import Float16
from ampcompare.precision.keep_fp32 import KeepFp32Error, match_modules
from ampcompare.precision.registry import PrecisionOptions

MIXED = [name for name, backend in REGISTRY.items() if not backend.is_fp32]
LOW = (torch.float16, torch.bfloat16)


def make_net() -> nn.Sequential:
    """Return a small network."""
    torch.manual_seed(0)
    inner = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8))
    return nn.Sequential(nn.Linear(4, 8), inner, nn.Linear(8, 3))


def static(name: str) -> dict[str, float]:
    """Else the first steps may be skipped."""
    return {"loss_scale": 128.0} if REGISTRY[name].scales else {}


def prepare_model(name: str, keep, model: nn.Module, **options):
    """Return a backend, prepared model and optimizer."""
    precision = build_precision(name, keep_fp32=keep, **options)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    model, optimizer = precision.prepare(model, optimizer)
    return precision, model, optimizer


def train_steps(precision: Precision, model: nn.Module, optimizer) -> list[float]:
    """Train steps and return the losses."""
    generator = torch.Generator().manual_seed(1)
    losses = []
    with precision.session():
        for _ in range(3):
            inputs, labels = torch.randn(6, 4, generator=generator), torch.arange(6) % 3
            with precision.forward_context():
                loss = F.cross_entropy(model(inputs), labels)
            precision.backward(loss)
            precision.step(optimizer)
            optimizer.zero_grad()
            losses.append(loss.item())
    return losses


def record_dtypes(model: nn.Module) -> dict[str, tuple[torch.dtype, torch.dtype]]:
    """Return the dtypes of input and result of each module; they are there after a forward."""
    seen: dict[str, tuple[torch.dtype, torch.dtype]] = {}
    for key, module in model.named_modules():
        module.register_forward_hook(
            lambda _, args, result, key=key: seen.update({key: (args[0].dtype, result.dtype)})
        )
    return seen


@pytest.mark.parametrize("name", MIXED)
def test_a_kept_module_and_its_submodules_compute_in_fp32_and_others_do_not(name: str):
    first = {key: value.clone() for key, value in make_net().state_dict().items()}
    precision, model, optimizer = prepare_model(name, "1", make_net(), **static(name))
    assert precision.fp32_modules == ["1"]
    assert torch.equal(model[1][0].weight, first["1.0.weight"])  # not rounded on the way
    others = {p.dtype for p in (*model[0].parameters(), *model[2].parameters())}
    assert others <= (set(LOW) if REGISTRY[name].half_weights else {torch.float32})
    seen = record_dtypes(model)
    train_steps(precision, model, optimizer)
    assert seen["1.0"] == seen["1.2"] == (torch.float32, torch.float32)
    assert seen["0"][1] in LOW
    assert seen["2"][1] in LOW
    assert model[1][0].weight.dtype is torch.float32
    assert not torch.equal(model[1][0].weight, first["1.0.weight"])


@pytest.mark.parametrize("name", MIXED)
def test_a_network_that_is_kept_whole_trains_as_fp32_bit_for_bit(name: str):
    expected = train_steps(*prepare_model("none", None, make_net()))
    assert train_steps(*prepare_model(name, "*", make_net(), **static(name))) == expected


class Twice(nn.Module):
    """One module in two places, and one weight in two modules."""

    def __init__(self) -> None:
        super().__init__()
        shared = nn.Linear(4, 4)
        self.first = nn.Sequential(shared, nn.ReLU())
        self.second = nn.Sequential(shared, nn.ReLU())
        self.embed = nn.Embedding(5, 4)
        self.head = nn.Linear(4, 5, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.second(self.first(self.embed(tokens))))


def test_modules_that_share_a_weight_with_a_kept_module_are_kept_under_16_bit_weights():
    assert prepare_model("fp16", "embed", Twice())[0].fp32_modules == ["embed", "head"]
    assert prepare_model("native", "embed", Twice())[0].fp32_modules == ["embed"]


def test_attention_is_kept_with_the_submodule_that_it_reads_without_a_call():
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    for keep, kept in (("self_attn.out_proj", ["self_attn.out_proj", "self_attn"]), ("linear1", ["linear1"])):
        precision, model, _ = prepare_model("fp16", keep, copy.deepcopy(layer))
        assert precision.fp32_modules == kept
        for mode in (True, False):
            with torch.no_grad():
                assert model.train(mode)(torch.randn(2, 3, 8)).isfinite().all()


class Careless(Float16):
    """Half weights that are converted without regard to kept modules."""

    def convert(self, model, optimizer):
        model.half()
        return Precision.convert(self, model, optimizer)


def test_a_backend_that_converts_a_kept_weight_is_refused():
    model, precision = make_net(), Careless(options=PrecisionOptions(keep_fp32="1"))
    with pytest.raises(KeepFp32Error, match=r"^precision.keep_fp32: .* call convert_network in its convert$"):
        precision.prepare(model, torch.optim.SGD(model.parameters()))
    assert not precision.fp32_modules


def test_stars_match_across_dots_and_a_module_includes_its_submodules():
    model = make_net()
    assert match_modules(model, "*.2") == ["1.2"]
    assert match_modules(model, ["2", "1*"]) == ["1", "2"]
    assert match_modules(model, "*") == [""]


@pytest.mark.parametrize(
    ("pattern", "message"),
    [("lin", "did you mean line?"), ("*.nrm", r"did you mean \*\.norm\?"), ("zzz", "it has line, rest")],
)
def test_a_pattern_without_a_match_is_one_line_with_similar_names(pattern: str, message: str):
    rest = nn.ModuleList(nn.ModuleDict({"norm": nn.ReLU()}) for _ in range(2))
    model = nn.ModuleDict({"line": nn.Linear(1, 1), "rest": rest})
    with pytest.raises(
        KeepFp32Error, match=rf"^precision.keep_fp32='{pattern}': no module.*{message}".replace("'*", r"'\*")
    ):
        match_modules(model, pattern)
