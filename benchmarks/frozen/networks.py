"""Networks and data of the corpora `rows` and `why`. A network kills its process where FROZEN_KILL says."""

import atexit
import hashlib
import os
import signal
import time
from typing import Any

import torch
from torch import nn

LETTERS = 33
built: list[nn.Module] = []  # the networks of this process; their weights are noted at its end


def kill(calls: int) -> None:
    """Kill this process if this is the call of a network in which it shall end."""
    if calls and os.environ.get("FROZEN_KILL") == str(calls):
        time.sleep(1)  # the checkpoint of the epoch before is being written
        os.kill(os.getpid(), signal.SIGKILL)


class Images(nn.Module):
    """A small network for images of 32 x 32 pixels."""

    def __init__(self, num_classes: int) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(3, 8, 3, stride=4), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten())
        self.head = nn.Linear(8 * 64, num_classes)
        self.calls = 0

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        self.calls += self.training
        kill(self.calls)
        return self.head(self.body(images))


class Letters(nn.Module):
    """Predicts the next letter; `factor` makes a layer overflow in fp16."""

    def __init__(self, factor: float = 1.0) -> None:
        super().__init__()
        self.letters = nn.Embedding(LETTERS, 16)
        self.norm = nn.LayerNorm(16)
        self.wide = nn.Linear(16, 32)
        self.narrow = nn.Linear(32, 16)
        self.head = nn.Linear(16, LETTERS)
        self.factor = factor
        self.calls = 0

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        self.calls += self.training
        kill(self.calls)
        x = self.letters(tokens)
        wide = torch.relu(self.wide(self.norm(x) * self.factor))
        return self.head(x + self.narrow(wide) / self.factor)


def noted(network: nn.Module) -> nn.Module:
    """Return a network whose weights are noted at the end of the process."""
    built.append(network)
    return network


def images(num_classes: int) -> nn.Module:
    """Build the network for images."""
    return noted(Images(num_classes))


def letters() -> nn.Module:
    """Build the network for text."""
    return noted(Letters())


def overflowing() -> nn.Module:
    """Build a network with a layer that overflows in fp16."""
    return noted(Letters(30000.0))


def texts(train: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """Return text and the letters that follow; the last targets of some texts are padding."""
    numbers = torch.arange(48 * 9).reshape(48, 9) * 7 % LETTERS
    targets = numbers[:, 1:].clone()
    targets[::3, 5:] = -100
    return numbers[:, :8].clone(), targets


def hash_weights() -> str:
    """Return a hash of every bit of the weights and buffers of the last network."""
    content = hashlib.sha256()
    state: dict[str, Any] = built[-1].state_dict()
    for name, tensor in state.items():
        numbers = tensor.detach().cpu().contiguous().reshape(-1)
        content.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        content.update(numbers.view(torch.uint8).numpy().tobytes())
    return content.hexdigest()[:16]


def write_weights() -> None:
    """Write the hash into the file that FROZEN_WEIGHTS names, in the main process."""
    if built and os.environ.get("FROZEN_WEIGHTS") and os.environ.get("RANK", "0") == "0":
        with open(os.environ["FROZEN_WEIGHTS"], "w") as file:
            file.write(hash_weights())


atexit.register(write_weights)
