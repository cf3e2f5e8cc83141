"""16-bit operations that a CPU computes in fp32: their errors, when they are active, and that none is missed.

The kernels are tested on any CPU as on a CPU without 16-bit support: with oneDNN switched off, PyTorch
answers that no 16-bit dtype is supported.
"""

import copy
import json
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from itertools import takewhile
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from support.properties import examples as how_many
from support.training import batch, trainer
from torch import Tensor, nn
from torch.profiler import ProfilerActivity, profile

from ampcompare.precision import build_precision
from ampcompare.precision.cpu_arithmetic import (
    DTYPES,
    compute_in_fp32,
    list_active_overloads,
    list_fp32_operations,
)
from ampcompare.training.trainer import Trainer

CPU = torch.device("cpu")
ALL = (
    "_convolution",
    "_scaled_dot_product_flash_attention_for_cpu_backward",
    "addbmm",
    "addmm",
    "baddbmm",
    "bmm",
    "convolution_backward",
    "mkldnn_rnn_layer",
    "mkldnn_rnn_layer_backward",
    "mm",
)
HALF = [pytest.param(torch.float16, id="fp16"), pytest.param(torch.bfloat16, id="bf16")]


@contextmanager
def all_in_fp32(*dtypes: str) -> Iterator[None]:
    """Return the context of a CPU without 16-bit support; fp32 operations inside use oneDNN."""
    with ExitStack() as stack:
        with torch.backends.mkldnn.flags(enabled=False):
            for dtype in dtypes or DTYPES:
                stack.enter_context(compute_in_fp32(CPU, dtype))
        yield


def compute_gradients(
    function: Callable[..., Tensor], inputs: Sequence[Tensor], upstream: Tensor
) -> list[Tensor]:
    """Return the output and the gradients of all inputs, for a given gradient of the output."""
    leaves = [tensor.detach().requires_grad_() for tensor in inputs]
    output = function(*leaves)
    return [output.detach(), *torch.autograd.grad(output, leaves, upstream)]


def assert_rounded_once(function: Callable[..., Tensor], inputs: Sequence[Tensor], terms: int) -> None:
    """Check that output and gradients are rounded to 16 bits once, after fp32 sums.

    Their error relative to fp64 is bounded accordingly. Dtypes, shapes and strides equal those of PyTorch's
    own kernels.
    """
    dtype = inputs[0].dtype
    own_output = function(*inputs)
    upstream = torch.randn_like(own_output)
    own = compute_gradients(function, inputs, upstream)
    with all_in_fp32():
        ours = compute_gradients(function, inputs, upstream)
    exact = compute_gradients(function, [x.double() for x in inputs], upstream.double())
    sizes = compute_gradients(function, [x.double().abs() for x in inputs], upstream.double().abs())
    for mine, theirs, value, size in zip(ours, own, exact, sizes, strict=True):
        assert (mine.dtype, mine.shape) == (dtype, theirs.shape)
        long = [i for i, length in enumerate(mine.shape) if length > 1]  # the others' strides mean nothing
        assert [mine.stride(i) for i in long] == [theirs.stride(i) for i in long]
        rounding = torch.finfo(dtype).eps / 2 * value.abs() + torch.finfo(dtype).smallest_normal * 2**-10
        bound = 1.01 * rounding + terms * torch.finfo(torch.float32).eps * size
        assert ((mine.double() - value).abs() <= bound).all()


@st.composite
def convolutions(draw: st.DrawFn) -> tuple[Callable[..., Tensor], list[Tensor]]:
    """Draw a convolution with random options, and its inputs in fp32."""
    dimensions, groups = draw(st.integers(1, 3)), draw(st.integers(1, 3))
    into, out = groups * draw(st.integers(1, 3)), groups * draw(st.integers(1, 3))
    kernel = draw(st.integers(1, 3))
    options: dict[str, Any] = {
        "stride": draw(st.integers(1, 2)),
        "padding": draw(st.integers(0, 2)),
        "dilation": draw(st.integers(1, 2)),
        "groups": groups,
    }
    is_transposed = draw(st.booleans())
    x = torch.randn(draw(st.integers(1, 3)), into, *[draw(st.integers(5, 7)) for _ in range(dimensions)])
    shape = (into, out // groups) if is_transposed else (out, into // groups)
    weight = torch.randn(*shape, *[kernel] * dimensions) / 4
    if dimensions == 2 and draw(st.booleans()):
        x = x.contiguous(memory_format=torch.channels_last)
        weight = weight.contiguous(memory_format=torch.channels_last)
    function = getattr(F, f"conv{'_transpose' * is_transposed}{dimensions}d")
    bias = [torch.randn(out)] if draw(st.booleans()) else []
    return lambda x, w, *b: function(x, w, *b, **options), [x, weight, *bias]


@st.composite
def products(draw: st.DrawFn) -> tuple[Callable[..., Tensor], list[Tensor]]:
    """Draw a matrix product and its inputs in fp32, some of them transposed views."""
    m, k, n, b = (draw(st.integers(1, 9)) for _ in range(4))
    scale = {"beta": draw(st.sampled_from([1, 0.5])), "alpha": draw(st.sampled_from([1, 2.0]))}

    def matrix(*shape: int) -> Tensor:
        if draw(st.booleans()):
            return torch.randn(*shape)
        return torch.randn(*shape[:-2], shape[-1], shape[-2]).transpose(-1, -2)

    single, several = [matrix(m, k), matrix(k, n)], [matrix(b, m, k), matrix(b, k, n)]
    cases: dict[str, list[Tensor]] = {
        "mm": single,
        "bmm": several,
        "addmm": [torch.randn(n), *single],
        "baddbmm": [torch.randn(b, m, n), *several],
        "addbmm": [torch.randn(m, n), *several],
    }
    name = draw(st.sampled_from(sorted(cases)))
    options = scale if name.startswith(("add", "badd")) else {}
    return partial(getattr(torch, name), **options), cases[name]


@how_many(25, 300)
@pytest.mark.parametrize("dtype", HALF)
@pytest.mark.parametrize("cases", [convolutions(), products()], ids=["convolutions", "products"])
def test_every_result_equals_fp64_rounded_once(cases: Any, dtype: torch.dtype, examples: int):
    @settings(max_examples=examples, derandomize=examples < 100)
    @given(case=cases, seed=st.integers(0, 2**31))
    def check(case: tuple[Callable[..., Tensor], list[Tensor]], seed: int) -> None:
        function, inputs = case
        torch.manual_seed(seed)
        assert_rounded_once(function, [x.to(dtype) for x in inputs], terms=1000)

    check()


@pytest.mark.parametrize("dtype", HALF)
@pytest.mark.parametrize("causal", [False, True])
def test_gradients_of_attention_are_as_close_to_fp64_as_pytorchs_own(dtype: torch.dtype, causal: bool):
    torch.manual_seed(0)
    *inputs, upstream = (torch.randn(2, 3, 17, 16).to(dtype) for _ in range(4))
    attend = partial(F.scaled_dot_product_attention, is_causal=causal)
    own = compute_gradients(attend, inputs, upstream)
    with all_in_fp32():
        ours = compute_gradients(attend, inputs, upstream)
    exact = compute_gradients(attend, [x.double() for x in inputs], upstream.double())
    for mine, theirs, value in zip(ours, own, exact, strict=True):
        errors = [(x.double() - value).abs().max() for x in (mine, theirs)]
        assert mine.dtype is dtype
        assert errors[0] <= errors[1] + torch.finfo(dtype).eps * value.abs().max() / 2


def test_in_place_and_out_overloads_write_what_the_plain_ones_return(subtests: pytest.Subtests):
    c, x, y = (torch.randn(*shape).half() for shape in ((4, 5), (4, 3), (3, 5)))
    cb, xb, yb = (torch.randn(*shape).half() for shape in ((2, 4, 5), (2, 4, 3), (2, 3, 5)))
    cases = {"mm": (x, y), "bmm": (xb, yb)}
    cases |= {"addmm": (c, x, y), "baddbmm": (cb, xb, yb), "addbmm": (c, xb, yb)}
    for name, arguments in cases.items():
        with subtests.test(name=name), all_in_fp32():
            plain = getattr(torch, name)(*arguments)
            assert torch.equal(getattr(torch, name)(*arguments, out=torch.empty_like(plain)), plain)
            if len(arguments) == 3:
                assert torch.equal(getattr(arguments[0].clone(), f"{name}_")(*arguments[1:]), plain)


def test_kernels_are_active_only_inside_the_context():
    assert list_active_overloads() == ()
    with all_in_fp32("float16"):
        inside = list_active_overloads()
        with all_in_fp32("bfloat16"), pytest.raises(ZeroDivisionError):
            1 / 0  # noqa: B018
        with all_in_fp32("float16"):
            pass
        assert list_active_overloads() == inside
    assert {name for name in inside if "." not in name and not name.endswith("m_")} == set(ALL)
    assert list_active_overloads() == ()
    for device, dtype in (("cuda", "float16"), ("mps", "float16"), ("cpu", "float32")):
        with compute_in_fp32(torch.device(device), dtype):
            assert list_active_overloads() == ()


def test_threads_that_train_and_evaluate_in_turn_do_not_disturb_each_other():
    """Each evaluates in fp32 outside of the context while another opens and closes it."""
    half, full = torch.randn(16, 16).half(), torch.randn(16, 16)
    expected = full @ full
    wrong: list[str] = []

    def train_and_evaluate() -> None:
        for _ in range(100):
            with compute_in_fp32(CPU, "float16"):
                half @ half
            if not torch.equal(full @ full, expected):
                wrong.append("a product in fp32")

    with all_in_fp32("float16"):  # the first context is open before the others compute
        threads = [threading.Thread(target=train_and_evaluate) for _ in range(3)]
        for thread in threads:
            thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    assert list_active_overloads() == ()


def test_transforms_of_functions_go_through_the_kernels():
    x, y = torch.randn(3, 4, 5).half(), torch.randn(3, 5, 2).half()
    with all_in_fp32():
        assert torch.equal(torch.func.vmap(torch.mm)(x, y), torch.bmm(x, y))
        value, tangent = torch.func.jvp(lambda a: a @ y[0], (x[0],), (x[0],))
        gradient = torch.func.grad(lambda a: (a @ y[0]).sum())(x[0])
    assert torch.equal(value, tangent)
    assert torch.equal(value, (x[0].float() @ y[0].float()).half())
    assert torch.equal(gradient, y[0].float().sum(1).half().expand(4, 5))


@pytest.mark.parametrize("layer", [nn.LSTM, nn.GRU, nn.RNN])
@pytest.mark.parametrize("backend", ["native", "apex_o1", "bf16"])
def test_recurrent_layers_train_with_the_gradients_of_fp32(layer: type[nn.Module], backend: str):
    """PyTorch alone fails with "could not create a primitive" for an fp16 LSTM under autocast."""
    torch.manual_seed(0)
    network, x = layer(6, 6, 2, bidirectional=True, batch_first=True), torch.randn(3, 5, 6)
    plain = copy.deepcopy(network)
    plain(x)[0].square().mean().backward()
    precision = build_precision(backend, "cpu", loss_scale=128.0)
    network, optimizer = precision.prepare(network, torch.optim.SGD(network.parameters(), lr=0.0))
    with all_in_fp32(precision.metadata.dtype):
        with precision.session(), precision.forward_context():
            loss = network(x)[0].float().square().mean()
        precision.backward(loss)
    precision.unscale_(optimizer)
    for mine, theirs in zip(network.parameters(), plain.parameters(), strict=True):
        error = (mine.grad.float() - theirs.grad).norm() / theirs.grad.norm()
        assert error < 8 * torch.finfo(precision.input_dtype).eps


class Mixture(nn.Module):
    """Every kind of layer whose 16-bit operations are slow on a CPU without units for them."""

    def __init__(self) -> None:
        super().__init__()
        self.images = nn.Sequential(
            nn.Conv2d(3, 8, 3, padding=1),
            nn.BatchNorm2d(8),
            nn.Conv2d(8, 8, 3, padding=1, groups=8),
            nn.ReLU(),
            nn.Conv2d(8, 8, 3, padding=2, dilation=2),
            nn.ConvTranspose2d(8, 8, 2, stride=2),
        )
        self.line, self.volume = nn.Conv1d(8, 8, 3), nn.Conv3d(8, 8, 2)
        self.attention = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
        self.recurrent, self.gated = nn.LSTM(8, 8, batch_first=True), nn.GRU(8, 8, batch_first=True)
        self.out = nn.Linear(8, 4)

    def forward(self, images: Tensor) -> Tensor:
        x = self.images(images)
        depth = self.volume(x.unsqueeze(2).repeat(1, 1, 2, 1, 1)).mean((2, 3, 4)).unsqueeze(2)
        tokens = self.attention(self.line(x.mean(3) + depth).transpose(1, 2))
        tokens = self.gated(self.recurrent(tokens)[0])[0]
        across = tokens.transpose(1, 2)
        scores = torch.baddbmm(tokens @ across, tokens, across)
        return self.out((scores @ tokens).mean(1))


# The functions that do the work within PyTorch's convolutions and recurrent layers, for 16-bit inputs.
INNER = {
    f"aten::{name}"
    for name in (
        "mkldnn_convolution _slow_conv2d_forward _slow_conv2d_backward slow_conv3d_forward "
        "slow_conv_dilated2d slow_conv_dilated3d slow_conv_transpose2d slow_conv_transpose3d "
        "_conv_depthwise2d"
    ).split()
}


def slow_operations(step: Callable[[], Any], folder: Path) -> tuple[set[str], set[str]]:
    """Return a step's 16-bit operations in PyTorch's slow kernels, and those computed in fp32.

    The profiler records every dispatched call with its dtypes, also in compiled code. A call that is computed
    in fp32 has a conversion inside.
    """
    with profile(activities=[ProfilerActivity.CPU], record_shapes=True) as found:
        step()
    found.export_chrome_trace(str(folder / "trace.json"))
    events = json.loads((folder / "trace.json").read_text())["traceEvents"]
    calls = sorted((e for e in events if e.get("cat") == "cpu_op"), key=lambda e: (e["ts"], -e["dur"]))
    slow, wide = set(), set()
    for number, call in enumerate(calls):
        types = [kind for kind in call["args"].get("Input type", []) if kind.startswith("c10::")]
        if not types or "float" in call["args"]["Input type"][: len(types)]:
            continue
        name, ends = call["name"], call["ts"] + call["dur"]
        later = takewhile(lambda other: other["ts"] <= ends, calls[number + 1 :])  # noqa: B023
        inside = {other["name"] for other in later if other["tid"] == call["tid"]}
        if name in INNER:
            slow.add(name)
        elif name.removeprefix("aten::") in ALL:
            (wide if "aten::_to_copy" in inside else slow).add(name)
    return slow, wide


@pytest.mark.parametrize("backend", ["native", "apex_o1", "bf16"])
def test_no_slow_operation_of_a_training_step_is_missed(backend: str, tmp_path: Path):
    torch.manual_seed(0)
    assert_none_is_missed(trainer(backend, Mixture()), tmp_path)


@pytest.mark.slow
def test_no_slow_operation_of_a_compiled_step_is_missed(tmp_path: Path):
    network = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(288, 4))
    assert_none_is_missed(trainer("native", network, compiled=True), tmp_path)


def assert_none_is_missed(made: Trainer, folder: Path) -> None:
    """Check a step of a trainer on a CPU without 16-bit support."""
    with torch.backends.mkldnn.flags(enabled=False), made.precision.training_context():
        made.step([batch(4)])  # compiles, and allocates
        slow, wide = slow_operations(lambda: made.step([batch(4)]), folder)
    assert not slow
    assert {"aten::_convolution", "aten::convolution_backward", "aten::mm"} <= wide
    assert list_active_overloads() == ()


def test_the_trace_finds_a_slow_operation(tmp_path: Path):
    x = torch.randn(2, 3, 8, 8).half().requires_grad_()
    weight = torch.randn(4, 3, 3, 3).half()

    def step() -> None:
        F.conv2d(x, weight).sum().backward()
        x[0, 0] @ x[0, 0]

    with torch.backends.mkldnn.flags(enabled=False):
        slow, wide = slow_operations(step, tmp_path)
    assert {"aten::convolution_backward", "aten::mm"} <= slow
    assert not wide


@pytest.mark.parametrize("backend", ["native", "apex_o1", "apex_o2", "fp16", "bf16"])
def test_recorded_operations_equal_active_operations(backend: str):
    """Also on this CPU as it is: a record names the operations that have a kernel in the training."""
    precision = build_precision(backend, "cpu")
    expected = list_fp32_operations(CPU, precision.metadata.dtype)
    with precision.training_context():
        active = list_active_overloads()
    assert {name for name in active if name in ALL} == set(expected)
