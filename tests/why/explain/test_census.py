"""In which type an op ran and why, and what was cast."""

from __future__ import annotations

import pytest
import torch

from ampcompare.why.explain.census import differences, take_census
from ampcompare.why.explain.reasons import ALONE, GIVEN, LISTED_FP32, LISTED_HALF

TINY = ["model.name=tiny", "data.source=synthetic", "batch_size=8", "device=cpu"]
IMAGENET = ["data.source=synthetic", "data.kwargs.size=224", "model.stem=imagenet", "batch_size=64"]
GPU = torch.device("cuda", 0)


def types_of(census, function):
    return {(kind.dtype, kind.why) for kind in census.kinds if kind.function == function}


def test_resnet50_under_native_has_the_types_and_casts_that_were_seen(trace_of):
    census = take_census(trace_of([*IMAGENET, "device=cpu"], "native"))
    (convolutions,) = (kind for kind in census.kinds if kind.function == "conv2d")
    assert (convolutions.count, convolutions.dtype, convolutions.why) == (53, "float16", LISTED_HALF)
    assert types_of(census, "batch_norm") == {("float16", ALONE)}
    assert {dtype for dtype, _ in types_of(census, "cross_entropy")} == {"float32"}
    # 53 weights of convolutions, weight and bias of the last layer, the images; and logits back to fp32
    assert census.casts[0].tensors == 56 + 1


@pytest.mark.parametrize("backend", ["none", "native", "native_bf16", "apex_o1", "apex_o2", "fp16", "bf16"])
def test_a_step_of_every_backend_is_traced_here_and_for_a_gpu(trace_of, backend):
    for device in (torch.device("cpu"), GPU):
        census = take_census(trace_of(TINY, backend, device))
        (convolution,) = types_of(census, "conv2d")
        low = {"none": "float32", "native_bf16": "bfloat16", "bf16": "bfloat16"}.get(backend, "float16")
        assert convolution[0] == low
        # On a GPU the log-softmax within stays half: PyTorch asks autocast for the logits' own type.
        assert "float32" in {dtype for dtype, _ in types_of(census, "cross_entropy")}


def test_plain_fp32_casts_nothing(trace_of):
    census = take_census(trace_of(TINY, "none"))
    assert [casts.tensors for casts in census.casts] == [0, 0, 0]
    assert {why for kind in census.kinds for why in [kind.why]} == {GIVEN}


def test_o1_leaves_torchs_softmax_in_fp16_where_native_takes_fp32(trace_of, own_words):
    one, other = (take_census(trace_of(own_words, backend, GPU)) for backend in ("native", "apex_o1"))
    (softmax,) = (found for found in differences(one, other) if found.function == "softmax")
    assert softmax.one == (("float32", LISTED_FP32),)
    assert softmax.other == (("float16", ALONE),)


def test_a_module_called_twice_is_counted_twice_under_its_name(trace_of, own_words):
    trace = trace_of(own_words, "native")
    calls = [op for op in trace.ops if op.module == "twice" and op.phase == "forward" and op.flop]
    assert len(calls) == 2
    backwards = [op for op in trace.ops if op.module == "twice" and op.phase == "backward" and op.flop]
    assert len(backwards) == 4  # of each call the weight's and the input's
    assert not any(op.module == "unused" for op in trace.ops)


def test_the_loss_is_told_from_the_network(trace_of, own_words):
    census = take_census(trace_of(own_words, "apex_o1"))
    assert census.modules["(loss)"] == ("float32",)
    assert types_of(census, "cross_entropy") == {("float32", LISTED_FP32)}


def test_casts_of_an_update_are_counted_by_tensor(trace_of):
    update = take_census(trace_of(TINY, "apex_o2")).casts[2]
    # four half weights: gradients into the masters', masters back into the weights; both in a few ops
    assert update.tensors >= 2 * 4
    assert update.ops < update.tensors


ATTENDS = """
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self, classes):
        super().__init__()
        self.embed = nn.Embedding(50, 32)
        self.block = nn.TransformerEncoderLayer(32, 4, 64, batch_first=True)
        self.out = nn.Linear(32, classes)
        self.scale = float(torch.ones(3).sum())  # a value, read while it is built
    def forward(self, x):
        return self.out(self.block(self.embed(x)).mean(1) / self.scale)

def build(num_classes):
    return Net(num_classes)
"""


@pytest.mark.parametrize("backend", ["native", "apex_o1"])
def test_attention_on_a_gpu_is_one_op_in_the_low_type(trace_of, own_words, tmp_path, backend):
    (tmp_path / "net.py").write_text(ATTENDS)  # and a network that reads values is built all the same
    census = take_census(trace_of(own_words, backend, GPU))
    assert types_of(census, "scaled_dot_product_attention") == {("float16", LISTED_HALF)}
    assert {dtype for dtype, _ in types_of(census, "layer_norm")} == {"float32"}
