"""In which type an op ran and why, what was cast, and what the backward is left with."""

from pathlib import Path

import pytest
from torch.autograd.graph import saved_tensors_hooks

from ampcompare.training.run_context import make_config, prepare_run, with_synthetic_data
from ampcompare.why.memory_estimate import StepMemory, estimate_memory
from ampcompare.why.op_dtypes import (
    AS_INPUT,
    CAST_DOWN,
    CAST_UP,
    LOSS,
    O1_HALF,
    ForwardTrace,
    trace_forward,
)

FEW = ["data.train_limit=16", "data.test_limit=8"]
TINY = [
    "model.name=tiny",
    "data.source=synthetic",
    "batch_size=8",
    "optimizer.momentum=0.9",
    "device=cpu",
    *FEW,
]
NET = '''
import torch
from torch import nn

class Net(nn.Module):
    """A module called twice, a tied weight, whole numbers as inputs, torch's softmax, a module unused."""
    def __init__(self, classes):
        super().__init__()
        self.embed = nn.Embedding(50, 32)
        self.twice = nn.Linear(32, 32)
        self.unused = nn.Linear(8, 8)
        self.head = nn.Linear(32, 50, bias=False)
        self.head.weight = self.embed.weight
        self.out = nn.Linear(50, classes)
    def forward(self, x):
        h = self.twice(torch.relu(self.twice(self.embed(x))))
        weights = torch.softmax(self.head(h), dim=-1)
        return {"logits": self.out(weights.mean(1)), "weights": weights}

class Attends(nn.Module):
    def __init__(self, classes):
        super().__init__()
        self.embed = nn.Embedding(50, 32)
        self.block = nn.TransformerEncoderLayer(32, 4, 64, dropout=0.0, batch_first=True)
        self.out = nn.Linear(32, classes)
        self.scale = float(torch.ones(3).sum())  # a value, read while it is built
    def forward(self, x):
        return self.out(self.block(self.embed(x)).mean(1) / self.scale)

def build(num_classes):
    return Net(num_classes)

def attends(num_classes):
    return Attends(num_classes)

def data(train):
    return torch.arange(40 * 12).view(40, 12) % 50, torch.arange(40) % 10
'''


@pytest.fixture
def own_files(tmp_path: Path) -> list[str]:
    """Return the options of a user's own network and data, in a file."""
    (tmp_path / "net.py").write_text(NET)
    where = [f"model.name={tmp_path}/net.py:build", f"data.source={tmp_path}/net.py:data"]
    return [*where, "batch_size=8", "device=cpu"]


def traced(words: list[str], backend: str) -> tuple[ForwardTrace, StepMemory]:
    config = with_synthetic_data(make_config(words, backend=backend))
    context = prepare_run(config)
    trace = trace_forward(context.build_trainer(config), context.first_steps(1)[0][0])
    return trace, estimate_memory(trace, config)


def dtypes_of(trace: ForwardTrace, name: str) -> set[tuple[str, str]]:
    return {(op.dtype, op.why) for op in trace.ops if op.name == name}


@pytest.mark.parametrize("backend", ["none", "native", "apex_o1", "bf16"])
def test_dtypes_are_those_of_the_ops_and_activations_what_autograd_saves(backend: str):
    low = {"none": "float32", "bf16": "bfloat16"}.get(backend, "float16")
    config = make_config(TINY, backend=backend)
    context = prepare_run(config)
    trainer, (batch,) = context.build_trainer(config), context.first_steps(1)[0]
    known = {t.untyped_storage().data_ptr() for t in (*trainer.model.parameters(), *trainer.model.buffers())}
    known |= {tensor.untyped_storage().data_ptr() for tensor in batch}
    found = {}

    def pack(tensor):
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in known:
            found[storage.data_ptr()] = storage.nbytes()
        return tensor.detach()

    precision = trainer.precision
    with precision.session(), precision.forward_context(), saved_tensors_hooks(pack, lambda tensor: tensor):
        _kept = trainer.forward(*batch)
    trace, memory = traced(TINY, backend)
    assert memory.activations == pytest.approx(sum(found.values()), rel=0.05)
    assert {dtype for dtype, _ in dtypes_of(trace, "conv2d")} == {low}
    assert "float32" in {dtype for dtype, _ in dtypes_of(trace, "cross_entropy")}
    assert (trace.casts > 0) is (backend != "none")
    if backend == "native":
        assert dtypes_of(trace, "conv2d") == {("float16", CAST_DOWN)}
        assert dtypes_of(trace, "cross_entropy") == {("float32", CAST_UP)}
        assert dtypes_of(trace, "batch_norm") == {("float16", AS_INPUT)}


def test_ops_are_listed_by_module_and_a_module_called_twice_counts_twice(own_files: list[str]):
    trace, _ = traced(own_files, "native")
    assert [op.name for op in trace.ops if op.module == "twice"] == ["linear", "linear"]
    assert {op.module for op in trace.ops if op.name == "cross_entropy"} == {LOSS}
    assert not any(op.module == "unused" for op in trace.ops)


@pytest.mark.parametrize(("backend", "why"), [("native", CAST_DOWN), ("apex_o1", O1_HALF)])
def test_attention_is_one_op_in_the_low_type(own_files: list[str], backend: str, why: str):
    words = [word.replace("net.py:build", "net.py:attends") for word in own_files]
    trace, _ = traced(words, backend)
    assert dtypes_of(trace, "scaled_dot_product_attention") == {("float16", why)}
    assert {dtype for dtype, _ in dtypes_of(trace, "layer_norm")} == {"float32"}


def test_weights_are_counted_once_adam_has_two_states_of_each_and_masters_come_beside_them(
    own_files: list[str],
):
    weights = 4 * (50 * 32 + 33 * 32 + 9 * 8 + 51 * 10)
    base, o2 = (traced([*own_files, "optimizer.name=adam"], backend)[1] for backend in ("none", "apex_o2"))
    assert (base.weights, base.states, base.masters) == (weights, 2 * weights, 0)
    assert (o2.masters, o2.states) == (weights, 2 * weights)
    assert o2.weights < weights
