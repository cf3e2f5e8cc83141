"""`why ... --weights FILE`: the step starts from trained weights, of a run or of another program."""

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from support.why_command import Why

from ampcompare.training.run_context import make_config, prepare_run

NET = """
from torch import nn


def build(num_classes, width=16):
    return nn.Sequential(
        nn.Flatten(), nn.Linear(3072, width), nn.BatchNorm1d(width), nn.ReLU(), nn.Linear(width, num_classes)
    )
"""
FILES = {"net.py": NET}
WORDS = ["model.name=./net.py:build", "data.source=synthetic", "data.train_limit=64", "data.test_limit=16"]
WORDS += ["batch_size=8", "device=cpu", "precision.init_scale=256"]


def trained(scale: float = 3.0) -> torch.nn.Module:
    space: dict = {}
    exec(NET, space)
    torch.manual_seed(9)
    model = space["build"](10)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(scale)
    return model


def save(kind: str) -> str:
    state = trained().state_dict()
    if kind == "safetensors":
        save_file(state, "w.safetensors")
        return "w.safetensors"
    prefix = {"ddp": "module.", "compiled": "_orig_mod."}.get(kind, "")
    state = {f"{prefix}{name}": tensor for name, tensor in state.items()}
    torch.save({"state_dict": state, "epoch": 3} if kind == "nested" else state, "w.pt")
    return "w.pt"


@pytest.mark.parametrize(
    ("kind", "backend"),
    [
        *((kind, "native") for kind in ("plain", "nested", "ddp", "compiled", "safetensors")),
        *(("plain", backend) for backend in ("native_bf16", "apex_o2", "fp16")),
    ],
)
def test_the_loss_in_fp32_is_that_of_the_trained_network(kind: str, backend: str, why: Why):
    """Computed apart from our code: the trained network in plain PyTorch on the first batch."""
    words = [*WORDS, f"backend={backend}"]
    answer, _ = why.json("diff", *words, "--weights", save(kind))
    ((inputs, targets),) = prepare_run(make_config(words)).first_steps(1)[0]
    wanted = F.cross_entropy(trained()(inputs), targets).item()
    assert answer["loss_fp32"] == pytest.approx(wanted, rel=2e-3 if backend == "fp16" else 1e-5)
    assert answer["loss"] == pytest.approx(wanted, rel=2e-2)
    assert answer["loss"] != answer["loss_fp32"]


def test_explain_and_guard_take_weights(why: Why):
    file = save("plain")
    place = f"a step with the weights of {file}: "
    output = why("explain", *WORDS, "backend=native", "--weights", file, "--seconds", 0)
    assert f"native compared with none in {place}" in output
    output = why("guard", *WORDS, "backend=native", "--weights", file, "--steps", 8)
    assert f"under native, beginning with {place}5 modules, 8 steps per trial" in output


@pytest.mark.parametrize(
    ("words", "state", "expected"),
    [
        ([], {"1.weight": torch.ones(16, 3072)}, "names that only the network has: 1.bias, 2.weight"),
        ([], trained().state_dict() | {"extra": torch.ones(1)}, "names that only the file has: extra"),
        (["model.kwargs.width=8"], None, "other shapes: 1.weight [16, 3072] in the file, [8, 3072] in the"),
        ([], {"epoch": 3}, "has no state dict"),
        (["--at", "abc"], None, "--at abc has weights already; leave one of them out"),
        (["--weights", "none.pt"], None, "--weights none.pt: cannot be read"),
        (["--weights", "net.py"], None, "--weights net.py: cannot be read"),
        (["--weights", "none.safetensors"], None, "--weights none.safetensors: cannot be read"),
    ],
)
def test_weights_that_do_not_fit_are_one_line(words, state, expected: str, why: Why):
    torch.save(trained().state_dict() if state is None else state, "w.pt")
    assert expected in why("diff", *WORDS, "backend=native", "--weights", "w.pt", *words, code=2)


@pytest.mark.parametrize(
    ("backend", "name", "module"), [("native", "1.weight", "1"), ("fp16", "4.bias", "4")]
)
def test_weights_that_are_not_finite_are_no_overflow_of_fp32(why: Why, backend: str, name: str, module: str):
    """Another backend may well have kept these weights finite."""
    state = trained().state_dict()
    state[name].view(-1)[3] = float("inf")
    torch.save(state, "w.pt")
    out = why("diff", f"backend={backend}", *WORDS, "--weights", "w.pt")
    assert f"the weights of {module} were inf or nan before the step" in out
    assert "no backend repairs it" not in out
