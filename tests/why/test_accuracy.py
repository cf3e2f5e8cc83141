"""`why diff KEY=A,B`: the less accurate way is named with its layer, and rounding is not called wrong."""

import re
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
import torch.nn.functional as F
from support.outside import Outside
from support.quick import QUICK
from support.why_command import Why

from ampcompare.config.load import load_config
from ampcompare.experiment import run
from ampcompare.why.accuracy import AccuracyComparison, compare_accuracy
from ampcompare.why.accuracy_table import describe_verdict
from ampcompare.why.step import from_options
from ampcompare.why.step_comparison import StepComparison
from ampcompare.why.value_pair import ValuePair

NET = '''
"""A network whose modules go wrong where FAULT says so, if they are compiled (or anywhere, with ALWAYS)."""
import torch
import torch.nn.functional as F
from torch import nn

FAULT, KIND, ALWAYS = "", "", False
DTYPE = torch.float32


@torch.library.custom_op("planted::scale", mutates_args=())
def scale(x: torch.Tensor, factor: float) -> torch.Tensor:
    return x * factor


@scale.register_fake
def _(x, factor):
    return torch.empty_like(x)


class Scale(torch.autograd.Function):
    @staticmethod
    def forward(context, x, forward, backward):
        context.factor = backward
        return scale(x, forward)

    @staticmethod
    def backward(context, gradient):
        return scale(gradient, context.factor), None, None


def planted(name, x):
    if name != FAULT or not (torch.compiler.is_compiling() or ALWAYS):
        return x
    return Scale.apply(x, 1.5 if KIND == "forward" else 1.0, 1.5 if KIND == "backward" else 1.0)


class Line(nn.Linear):
    name = ""

    def forward(self, x):
        y = super().forward(x)
        if KIND == "weights" and self.name == FAULT:
            part = F.linear(x.detach(), self.weight) * torch.compiler.is_compiling()
            y = y + 0.5 * (part - part.detach())
        return planted(self.name, y)


class Block(nn.Module):
    def __init__(self, width, name, dropout):
        super().__init__()
        self.name, self.norm, self.act = name, nn.LayerNorm(width), nn.ReLU(inplace=True)
        self.wide, self.out = Line(width, 2 * width), Line(2 * width, width)
        self.wide.name, self.out.name = f"{name}.wide", f"{name}.out"
        self.drop = nn.Dropout(dropout)

    def forward(self, x):
        y = self.drop(self.out(self.act(self.wide(self.norm(x)))))
        return x + planted(self.name, y)


class Net(nn.Module):
    def __init__(self, width=32, letters=33, dropout=0.1):
        super().__init__()
        self.letters = nn.Embedding(letters, width)
        self.blocks = nn.ModuleList(Block(width, f"blocks.{i}", dropout) for i in range(3))
        self.norm, self.head = nn.LayerNorm(width), Line(width, letters)
        self.head.name = "head"

    def forward(self, tokens):
        x = self.letters(tokens)
        for block in self.blocks:
            x = block(x)
        return {"logits": self.head(self.norm(planted("net", x)))}


def build():
    return Net()


def data(train):
    numbers = torch.randint(0, 33, (32, 9), generator=torch.Generator().manual_seed(3))
    return numbers[:, :8].clone(), numbers[:, 1:].clone()


class Odd(nn.Module):
    """Casts of its own, a table that is no buffer, tied weights, functional dropout, a scalar, a GRU."""

    def __init__(self):
        super().__init__()
        self.letters, self.table = nn.Embedding(33, 16), torch.linspace(0.5, 1.5, 16)
        self.layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.1, batch_first=True)
        self.memory, self.scale = nn.GRU(16, 16, batch_first=True), nn.Parameter(torch.ones(()))
        self.mix = torch.eye(16) + 0.01

    def forward(self, tokens):
        x = self.letters(tokens) * self.table.to(DTYPE)
        x = F.dropout(self.layer(x), 0.2, self.training)
        x = x.to(DTYPE) @ self.mix.to(DTYPE) + torch.ones(16, dtype=DTYPE)
        x = F.layer_norm((x.float() if DTYPE is torch.float32 else x), (16,))
        x, _ = self.memory(x)
        return {"logits": F.linear(x, self.letters.weight) * self.scale}


def odd():
    return Odd()


class Images(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.bn = nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8)
        self.conv2, self.head = nn.Conv2d(8, 8, 3, stride=2), nn.Linear(8, 10)

    def forward(self, x):
        x = self.conv2(F.relu(self.bn(self.conv(x))))
        return self.head(F.gelu(x).mean((2, 3)))


def images(num_classes):
    return Images()


class Scalars(nn.Module):
    """Gradients that are single numbers, and gradients that are 0 in exact arithmetic (before a norm)."""

    def __init__(self):
        super().__init__()
        self.letters, self.hot, self.cold = nn.Embedding(33, 16), nn.PReLU(), Temperature()
        self.bias, self.norm, self.head = Shift(), nn.LayerNorm(16), nn.Linear(16, 33)

    def forward(self, tokens):
        return {"logits": self.head(self.norm(self.bias(self.cold(self.hot(self.letters(tokens))))))}


class Temperature(nn.Module):
    def __init__(self):
        super().__init__()
        self.value = nn.Parameter(torch.ones(1))

    def forward(self, x):
        return x * self.value


class Shift(nn.Module):
    def __init__(self):
        super().__init__()
        self.value = nn.Parameter(torch.zeros(1))

    def forward(self, x):
        return x + self.value


def scalars():
    return Scalars()


class Dice(nn.Module):
    """Draws other numbers each time, in training or always."""

    def __init__(self, always):
        super().__init__()
        self.always = always

    def forward(self, x):
        if self.always or self.training:
            x = x * (1 + torch.rand(torch.tensor(DICE_SIDES), dtype=x.dtype).mean() / 10)
        return x


DICE_SIDES = 1


class WithDice(Net):
    always = False

    def __init__(self):
        super().__init__(dropout=0.0)
        self.dice = Dice(self.always)

    def forward(self, tokens):
        x = self.dice(self.letters(tokens))
        for block in self.blocks:
            x = block(x)
        return {"logits": self.head(self.norm(x))}


def with_dice():
    return WithDice()


def with_dice_always():
    net = WithDice()
    net.dice.always = True
    return net


class Branch(Net):
    def forward(self, tokens):
        logits = super().forward(tokens)["logits"]
        return {"logits": logits * 2 if logits.sum() > 0 else logits}


def branch():
    return Branch()
'''
BACKENDS = '''
import sys
import torch
from ampcompare.precision.base import Precision
from ampcompare.precision.native import NativeBFloat16
from ampcompare.precision.registry import BackendInfo


class Backwards(torch.autograd.Function):
    @staticmethod
    def forward(context, x):
        return x.clone()

    @staticmethod
    def backward(context, gradient):
        return gradient * 1.5


def output(model, name):
    model.get_submodule(name).register_forward_hook(lambda m, inputs, y: y * 1.5)


def gradient(model, name):
    model.get_submodule(name).register_forward_hook(lambda m, inputs, y: Backwards.apply(y))


def weights(model, name):
    model.get_submodule(name).weight.register_hook(lambda gradient: gradient * 1.02)


def plant(kind, base, name):
    class Planted(base):
        metadata = BackendInfo(label=f"planted", description="a fault", dtype=base.metadata.dtype)

        def convert(self, model, optimizer):
            globals()[kind](model, name)
            return super().convert(model, optimizer)

    return Planted


Output = plant("output", NativeBFloat16, "blocks.1.wide")
Gradient = plant("gradient", NativeBFloat16, "blocks.0.out")
Weights = plant("weights", Precision, "blocks.2.out")


class Noise(NativeBFloat16):
    """Rounds every output of a module once more, in a random direction."""

    metadata = BackendInfo(label="noise", description="more rounding", dtype="bfloat16")

    def convert(self, model, optimizer):
        own = torch.Generator().manual_seed(1)

        def hook(module, inputs, y):
            if isinstance(y, torch.Tensor):
                return y * (1 + 2**-9 * torch.randn(y.shape, generator=own).to(y.dtype))

        for module in model.modules():
            if not list(module.children()) and module is not model:
                module.register_forward_hook(hook)
        return super().convert(model, optimizer)


class Sides(NativeBFloat16):
    """Draws two random numbers where others draw one."""

    metadata = BackendInfo(label="sides", description="other draws", dtype="bfloat16")

    def session(self):
        return self.two_sides()

    from contextlib import contextmanager

    @contextmanager
    def two_sides(self):
        networks = [module for module in sys.modules.values() if "DICE_SIDES" in vars(module)]
        for module in networks:
            module.DICE_SIDES = 2
        try:
            yield
        finally:
            for module in networks:
                module.DICE_SIDES = 1
'''
FILES = {"net.py": NET, "backends.py": BACKENDS}
TOKENS = ("data.source=./net.py:data", "device=cpu", "batch_size=8")
TEXT = ("model.name=./net.py:build", *TOKENS)
COMPILED = ValuePair("execution", ("eager", "compile"))


@pytest.fixture
def traced(outside: Outside) -> None:
    """Trace and differentiate a step as the compiler does, and then run it without generating code."""
    outside.replace(torch, "compile", partial(torch.compile, backend="aot_eager"))


def plant(fault: str, kind: str) -> None:
    """Write the network with a fault."""
    text = NET.replace('FAULT, KIND, ALWAYS = "", ""', f'FAULT, KIND, ALWAYS = "{fault}", "{kind}"')
    Path("net.py").write_text(text)


def compare(pair: ValuePair, *words: str) -> AccuracyComparison:
    return compare_accuracy(from_options([*TEXT, *words, "execution=eager"]), pair)


IMAGES = ("data.source=synthetic", "data.train_limit=32", "data.test_limit=16", "device=cpu", "batch_size=8")


FAULTS = [
    ("blocks.1", "forward", "blocks.1", "native_bf16"),  # in the code of the block, not in a module it calls
    ("blocks.2.out", "backward", "blocks.2.out", "native_bf16"),
    ("net", "backward", None, "native"),
    ("blocks.1.out", "weights", "blocks.1.out", "native"),
]


@pytest.mark.slow
@pytest.mark.parametrize(("fault", "kind", "place", "backend"), FAULTS)
def test_a_fault_of_the_compiled_step_is_found_at_its_layer(
    fault: str, kind: str, place: str | None, backend: str, traced: None
):
    plant(fault, kind)
    result = compare(COMPILED, f"backend={backend}", "precision.init_scale=1024")
    assert result.left_out == []
    assert result.fault is not None
    assert result.names[result.fault.variant] == "compiled"
    assert result.fault.times > 4
    where = "cause unknown" if place is None else f"because of {place} in "
    assert where in describe_verdict(result)
    if place is not None:
        assert ("gradient" not in str(result.fault.value)) == (kind == "forward")


@pytest.mark.parametrize(
    ("first", "second", "place"),
    [
        ("native_bf16", "./backends.py:Output", "blocks.1.wide"),
        ("./backends.py:Gradient", "native_bf16", "blocks.0.out"),
        ("none", "./backends.py:Weights", "blocks.2.out"),
    ],
)
def test_a_fault_of_one_of_two_backends_is_found_in_either_order(first: str, second: str, place: str):
    result = compare(ValuePair("backend", (first, second)))
    assert result.fault is not None
    assert (result.names[result.fault.variant], result.fault.place) == ("planted", place)
    if first == "none":  # the planted gradient is 1.02 times the exact one, up to the rounding of fp32
        rows = {row.worst: row.worst_errors for row in result.groups if row.part == "gradients" and row.group}
        in_fp32, planted = rows["blocks.2.out.weight"]
        assert planted == pytest.approx(0.02, rel=1e-3)
        assert in_fp32 < 1e-5


def test_a_traced_step_without_a_fault_is_no_less_accurate(traced: None):
    result = compare(COMPILED, "backend=native_bf16")
    assert (result.fault, result.left_out, result.not_judged) == (None, [], [])
    assert describe_verdict(result).startswith("compiled is no less accurate than eager (")


@pytest.mark.parametrize(
    ("name", "words", "optimizer"),
    [("build", TOKENS, "sgd"), ("odd", TOKENS, "adamw"), ("images", IMAGES, "sgd")],
)
def test_the_reference_equals_a_step_in_fp64_in_plain_pytorch(
    name: str, words: tuple[str, ...], optimizer: str
):
    recipe = ["recipe=reference", "optimizer.name=sgd", "optimizer.momentum=0.9", "optimizer.lr=0.05"]
    if optimizer == "adamw":
        recipe = ["recipe=adamw", "optimizer.lr=0.001"]
    words = (f"model.name=./net.py:{name}", *words, *recipe, "schedule.warmup_epochs=0", "seed=3")
    source = from_options([*words, "backend=native_bf16"])
    comparison = StepComparison(source, ValuePair("backend", ("native_bf16", "apex_o1_bf16")))
    step = comparison.take()[2]

    net: dict[str, Any] = {}
    exec(
        NET.replace("planted::", "planted_again::").replace("DTYPE = torch.float32", "DTYPE = torch.float64"),
        net,
    )
    model = net[name](*([10] if name == "images" else [])).double()
    with torch.no_grad():
        for parameter, weight in zip(model.parameters(), comparison.weights, strict=True):
            parameter.copy_(weight)
    before = {n: p.detach().clone() for n, p in model.named_parameters()}
    options = source.config.optimizer
    make = partial(torch.optim.SGD, momentum=0.9) if optimizer == "sgd" else torch.optim.AdamW
    plain = make(model.parameters(), lr=options.lr, weight_decay=options.weight_decay)
    ((inputs, targets),) = source.batches
    torch.manual_seed(3)
    outputs = model(inputs.double() if inputs.is_floating_point() else inputs)
    if isinstance(outputs, dict):
        outputs, targets = outputs["logits"].flatten(0, 1), targets.flatten()
    loss = F.cross_entropy(outputs, targets)
    loss.backward()
    plain.step()

    assert step.loss == pytest.approx(loss.item(), rel=1e-12)
    parameters = {n: p for n, p in model.named_parameters() if p.grad is not None}
    assert step.gradients.keys() == parameters.keys()
    for key, parameter in parameters.items():
        torch.testing.assert_close(step.gradients[key], parameter.grad, rtol=1e-9, atol=1e-14)
        update = parameter.detach() - before[key]
        # Adam divides by the size of a gradient: one that is 0 but for rounding has any update.
        is_exact = parameter.grad.abs() > 1e-10
        torch.testing.assert_close(step.updates[key][is_exact], update[is_exact], rtol=1e-6, atol=1e-12)


def test_a_module_with_other_draws_is_named_and_left_out():
    pair = ValuePair("backend", ("native_bf16", "./backends.py:Sides"))
    result = compare_accuracy(from_options(["model.name=./net.py:with_dice", *TOKENS]), pair)
    assert (result.left_out, result.fault) == (["dice"], None)


def test_a_module_that_draws_in_evaluation_mode_is_refused_by_name(why: Why):
    words = ["model.name=./net.py:with_dice_always", *TOKENS]
    assert " dice" in why("diff", *words, "backend=native_bf16,./backends.py:Sides", code=2)


def test_the_output_has_errors_verdict_and_json(why: Why):
    content, output = why.json("diff", *TEXT, "backend=native_bf16,apex_o1_bf16")
    groups = {(row["part"], row["group"]) for row in content["groups"]}
    assert {("loss", ""), ("gradients", ""), ("updates", ""), ("gradients", "head")} <= groups
    assert (content["fault"], content["names"]) == (None, ["native_bf16", "apex_o1_bf16"])
    for name in ("letters.weight", "head.", "gradients, blocks", "updates, norm"):
        assert name in output
    assert re.search(r"^- apex_o1_bf16 is no less accurate than native_bf16 \(\S+ and \S+\)$", output, re.M)


def test_a_skipped_step_is_named_and_nothing_is_called_wrong(why: Why):
    output = why("diff", *TEXT, "backend=native,apex_o1", "precision.init_scale=1e30")
    assert "skipped the optimizer step" in output
    assert "try a smaller one: precision.init_scale=256" in output
    assert "is less accurate" not in output


def test_trained_weights_and_a_recorded_step_are_compared(why: Why):
    assert run(load_config(None, [*QUICK, "backend=native"])).exit_code == 0
    checkpoint = next(Path("runs").rglob("*.pt"))
    output = why("diff", "memory_format=contiguous,channels_last", "--at", "runs@6")
    assert why.step(output) == 6
    assert "channels_last is no less accurate than contiguous" in output
    output = why("diff", *QUICK, "backend=native,apex_o1", "--weights", checkpoint)
    assert "apex_o1 is no less accurate than native" in output


def test_a_step_that_does_not_fit_into_memory_in_fp64_is_refused_with_its_need(outside: Outside, why: Why):
    class Memory:
        available = 1000

    outside.replace(psutil, "virtual_memory", Memory)
    error = why("diff", *TEXT, "backend=native,apex_o1", code=2)
    assert re.search(r"fp64.* needs about [\d.]+ GB", error)


def test_what_cannot_be_compiled_is_one_line(outside: Outside, traced: None, why: Why):
    words = ["backend=native_bf16", "execution=eager,compile"]
    assert "execution=compile: " in why("diff", "model.name=./net.py:branch", *TOKENS, *words, code=2)

    def fail(*_: Any, **__: Any) -> None:
        raise RuntimeError("no C++ compiler")

    outside.replace(torch, "compile", lambda *_, **__: fail)
    assert "no C++ compiler" in why("diff", *TEXT, *words, code=2)


@pytest.mark.slow
@pytest.mark.parametrize("network", ["scalars", "odd"])
def test_more_rounding_is_not_called_wrong_over_many_seeds(network: str):
    """The same size of error, in other places: single numbers and gradients that cancel out vary most."""
    for seed in range(8):
        words = [f"model.name=./net.py:{network}", *TOKENS, "backend=native_bf16", f"seed={seed}"]
        pair = ValuePair("backend", ("native_bf16", "./backends.py:Noise"))
        result = compare_accuracy(from_options(words), pair)
        assert result.fault is None, (seed, describe_verdict(result))


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("backend=native,apex_o1 backend=native_bf16", "native_bf16 compared with fp32"),  # the later one
        ("backend=native_bf16 precision.keep_fp32=[0,1]", "compared with fp32"),
        ("backend=native_bf16 memory_format=contiguous,channels_last", "no less accurate than"),
    ],
)
def test_two_values_of_one_option_are_compared(words: str, expected: str, why: Why):
    assert expected in why("diff", *QUICK, *words.split())


@pytest.mark.parametrize(
    ("command", "words", "expected"),
    [
        ("diff", "optimizer.lr=0.1,0.2", "optimizer.lr='0.1,0.2'"),
        ("diff", "backend=native,native", "the values are equal"),
        ("diff", "execution=eager,compile,eager", "expected two values"),
        ("diff", "execution=eager,cuda_graph", "execution=eager,compile"),
        ("diff", "execution=eager,fast", "execution='fast': expected one of"),
        ("diff", "backend=native,O1", "backend='O1': expected one of"),
        ("diff", "backend=native,", "backend=''"),
        ("diff", "memory_format=auto,contiguous", "memory_format=contiguous,channels_last"),
        ("diff", "backend=native,none memory_format=contiguous,channels_last", "to one of them only"),
        ("explain", "execution=eager,compile", "`why explain` takes one value; `why diff` compares two"),
        ("guard", "backend=native,none", "`why guard` takes one value; `why diff` compares two"),
    ],
)
def test_what_cannot_be_compared_is_one_line(command: str, words: str, expected: str, why: Why):
    assert expected in why(command, *QUICK, *words.split(), code=2)
