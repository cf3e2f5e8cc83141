"""Compiled code is used for the next network only if nothing that it holds differs; a message names it."""

import runpy
from pathlib import Path

import pytest
from torch import nn

from ampcompare.precision import build_precision
from ampcompare.training.network_description import describe_training, find_difference
from ampcompare.training.torch_compile import find_compiled_code, forget_compiled_code

HEAD = """
import functools, itertools, types
import torch
from torch import nn

count = itertools.count(1)
"""
# How the next network differs from the one before, and the part that the message names.
DIFFERENCES = {
    "network.factor": """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.factor = float(next(count))
def build():
    return Net()
""",
    "network.1.0.p": """
def build():
    return nn.Sequential(nn.Flatten(), nn.Sequential(nn.Dropout(0.1 * next(count))))
""",
    "network.0.options.rate": """
class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.options = {"size": 3, "rate": 0.1 * next(count)}
def build():
    return nn.Sequential(Block())
""",
    "network.configs.1.rate": """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.configs = [types.SimpleNamespace(rate=1), types.SimpleNamespace(rate=next(count))]
def build():
    return Net()
""",
    "network.Net.forward.SCALE": """
class Net(nn.Module):
    def forward(self, x):
        return x * SCALE
def build():
    global SCALE
    SCALE = next(count)
    return Net()
""",
    "network.Net.forward.KEEP": """
class Net(nn.Module):
    def forward(self, x):
        return sum([x * KEEP for _ in range(1)])
def build():
    global KEEP
    KEEP = next(count)
    return Net()
""",
    "network.Net.forward.INNER": """
class Net(nn.Module):
    def forward(self, x):
        return (lambda y: y * INNER)(x)
def build():
    global INNER
    INNER = next(count)
    return Net()
""",
    "network.config.state.2.1._Slotted__rate": """
class Slotted:
    __slots__ = ("__rate",)
    def __init__(self, rate):
        self.__rate = rate
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.config = Slotted(next(count))
def build():
    return Net()
""",
    "network.dice.state.2.1.1": """
import random
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.dice = random.Random(next(count))
def build():
    return Net()
""",
    "network.0.Block.forward.scaled.SCALE": """
class Block(nn.Module):
    def forward(self, x):
        return scaled(x)
def scaled(x):
    return x * SCALE
def build():
    global SCALE
    SCALE = next(count)
    return nn.Sequential(Block())
""",
    "network.Net.scale.CONFIG.scale": """
CONFIG = {}
class Net(nn.Module):
    @property
    def scale(self):
        return CONFIG["scale"]
def build():
    CONFIG["scale"] = next(count)
    return Net()
""",
    "network.Net.scaled.SCALE": """
class Net(nn.Module):
    @staticmethod
    def scaled(x):
        return x * SCALE
def build():
    global SCALE
    SCALE = next(count)
    return Net()
""",
    "network.Base.scale": """
class Base(nn.Module):
    scale = 1
class Net(Base):
    pass
def build():
    Base.scale = next(count)
    return Net()
""",
    "network.0.forward.rate": """
def build():
    network, rate = nn.Sequential(nn.Identity()), next(count)
    network[0].forward = lambda x: x * rate
    return network
""",
    "network.0._forward_hooks.0.rate": """
def build():
    network, rate = nn.Sequential(nn.Identity()), next(count)
    network[0].register_forward_hook(lambda module, inputs, outputs: outputs * rate)
    return network
""",
    "network.activation.defaults.0.0": """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        def activation(x, rate=next(count)):
            return x * rate
        self.activation = activation
def build():
    return Net()
""",
    "network.activation.state.2.2.alpha": """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.activation = functools.partial(torch.nn.functional.elu, alpha=next(count))
def build():
    return Net()
""",
    "network.last.weight.shape": """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.last = nn.Linear(4, 4)
        self.last.weight = nn.Parameter(torch.ones(4, next(count)))
def build():
    return Net()
""",
    "network.0.bias.requires_grad": """
def build():
    network = nn.Sequential(nn.Linear(2, 2))
    network[0].bias.requires_grad_(next(count) == 1)
    return network
""",
    "network._modules": """
def build():
    return nn.Sequential(*[nn.ReLU() for _ in range(next(count))])
""",
    "network.0._parameters.bias": """
def build():
    return nn.Sequential(nn.Linear(2, 2, bias=next(count) == 1))
""",
}
# What cannot be compared, its type, and where it is.
UNKNOWN = {
    "network.0.table is a Tensor": """
class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = torch.arange(3)
def build():
    return nn.Sequential(Block())
""",
    "network.random is a Generator": """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.random = torch.Generator()
def build():
    return Net()
""",
    "network.config is a DictConfig": """
from omegaconf import OmegaConf
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.config = OmegaConf.create({"rate": 2.0, "checkpoint": "???"})
def build():
    return Net()
""",
    "network.Net.forward.TABLE is a Tensor": """
TABLE = torch.arange(3)
class Net(nn.Module):
    def forward(self, x):
        return x + TABLE
def build():
    return Net()
""",
}
EQUAL = {
    "a buffer with another value": """
class Net(nn.Module):
    scale = 2
    def __init__(self):
        super().__init__()
        self.register_buffer("factor", torch.tensor(next(count)))
    def forward(self, x):
        return x * self.factor * self.scale
def build():
    return Net()
""",
    "hooks, closures and partials with equal values": """
RATE = {1: (2.0, None), "1": 3}
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        rate = 0.5
        self.activation = functools.partial(torch.nn.functional.elu, alpha=rate)
        self.register_forward_pre_hook(lambda module, inputs: inputs[0] * rate * RATE[1][0])
def build():
    return Net()
""",
}


def compile_two(source: str, folder: Path) -> bool:
    """Return whether the second network of a file gets the compiled code of the first."""
    forget_compiled_code()
    (folder / "net.py").write_text(HEAD + source)
    build = runpy.run_path(str(folder / "net.py"))["build"]
    precision = build_precision("none")
    first, second, _ = (find_compiled_code(build(), nn.functional.cross_entropy, precision) for _ in range(3))
    return first is second


@pytest.mark.parametrize("where", DIFFERENCES)
def test_a_difference_is_named_once(where: str, tmp_path: Path, caplog: pytest.LogCaptureFixture):
    assert not compile_two(DIFFERENCES[where], tmp_path)
    (message,) = caplog.messages
    assert message.startswith(f"compiling again for each seed: {where} is not that of the network before; ")


@pytest.mark.parametrize("what", UNKNOWN)
def test_what_cannot_be_compared_is_named(what: str, tmp_path: Path, caplog: pytest.LogCaptureFixture):
    assert not compile_two(UNKNOWN[what], tmp_path)
    (message,) = caplog.messages
    assert message.startswith(f"compiling again for each seed: {what}, which cannot be compared ")


@pytest.mark.parametrize("what", EQUAL)
def test_equal_networks_share_compiled_code(what: str, tmp_path: Path, caplog: pytest.LogCaptureFixture):
    assert compile_two(EQUAL[what], tmp_path)
    assert not caplog.messages


def test_another_network_is_no_difference_of_seeds():
    loss = nn.functional.cross_entropy
    networks = nn.Sequential(nn.ReLU()), nn.Sequential(nn.Tanh())
    difference = find_difference(*(describe_training(network, loss) for network in networks))
    assert difference is not None
    assert difference.is_class
