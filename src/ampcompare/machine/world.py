"""Several processes train one model: who is who, and the few things they say to each other.

Started by `torchrun --nproc-per-node=N run_experiment.py ...`, each process has a device of its own.
`batch_size` is that of all together; each takes every N-th image of a batch, so that a run on N devices sees
the batches of a run on one. Process 0 alone writes: the record, the console.
"""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from ampcompare.config.load import Config
from ampcompare.errors import UserError
from ampcompare.machine.device import is_cuda, resolve_device

MEETING = "ampcompare"
ASK_SECONDS = 2.0  # a batch system gives some 30 from its signal to SIGKILL; a run is to end within 10
MEETING_LIMIT = timedelta(minutes=5)  # machines may start at different times


@dataclass(frozen=True)
class World:
    """This process among `size`. Alone, everything here is nothing."""

    rank: int = 0
    size: int = 1
    local_rank: int = 0
    local_size: int = 1  # on this machine
    device: torch.device = torch.device("cpu")  # its own

    @property
    def leads(self) -> bool:
        return self.rank == 0

    def sum_(self, tensor: Tensor) -> Tensor:
        """The sum over all processes, in place, queued on the device."""
        if self.size > 1:
            dist.all_reduce(tensor)
        return tensor

    def mean_(self, tensor: Tensor) -> Tensor:
        """The mean over all processes, in place; inf and nan of any one are in it."""
        return self.sum_(tensor).div_(self.size) if self.size > 1 else tensor

    def share(self, words: list[Any]) -> list[Any]:
        """What process 0 has to say, in all processes."""
        if self.size > 1:
            dist.broadcast_object_list(words)
        return words

    def gather(self, word: Any) -> list[Any]:
        """What each process has to say, in all of them, by rank."""
        words: list[Any] = [word]
        if self.size > 1:
            words = [None] * self.size
            dist.all_gather_object(words, word)
        return words

    def share_buffers(self, model: nn.Module) -> None:
        """Give all processes the buffers of process 0: each has BatchNorm statistics of its own images."""
        if self.size > 1:
            for buffer in model.buffers():
                dist.broadcast(buffer, 0)

    @contextmanager
    def leader_first(self) -> Iterator[None]:
        """What is inside is done by process 0, then by the others: a download, a cache."""
        if self.size > 1 and not self.leads:
            dist.barrier()
        try:
            yield
        finally:
            if self.size > 1 and self.leads:
                dist.barrier()

    @contextmanager
    def agree(self) -> Iterator[None]:
        """What raises UserError inside in one process, where nobody waits for another, raises it in all."""
        own = None
        try:
            yield
        except UserError as problem:
            if self.size == 1:
                raise
            own = problem
        for message, *details in filter(None, self.gather(own.lines if own else [])):
            raise own or UserError(message, details)


def is_loss_of_another(problem: RuntimeError) -> bool:
    """Whether it is what PyTorch raises where another process has ended."""
    return isinstance(problem, dist.DistError) or "gloo" in str(problem).lower()


def this_world() -> World:
    """This process among those that were started together: as torch.distributed has it where it is up, in
    somebody's own loop, else by torchrun's variables. Without device. Raises UserError.
    """
    if dist.is_available() and dist.is_initialized():
        return World(dist.get_rank(), dist.get_world_size())
    names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")
    texts = {name: os.environ.get(name) or default for name, default in zip(names, "0101", strict=True)}
    for name, text in texts.items():
        if not text.isdecimal():
            expected = "expected a whole number, as torchrun sets it"
            raise UserError(f"{name}={text!r}: {expected}; unset it, or use torchrun")
    rank, size, local_rank, local_size = map(int, texts.values())
    return World(rank, size, local_rank, local_size) if size > 1 else World()


@contextmanager
def join(config: Config) -> Iterator[World]:
    """The world of this process, with its device, its processes connected. Raises UserError."""
    world = this_world()
    if world.size > 1:
        check_config(config, world)
    world = replace(world, device=resolve_device(device_name(config.device, world)))
    if world.size == 1:
        yield world
        return
    store, *_ = next(dist.rendezvous("env://", world.rank, world.size))
    backend = "nccl" if is_cuda(world.device) else "gloo"
    dist.init_process_group(backend, store=_meet(store, world), rank=world.rank, world_size=world.size)
    try:
        yield world
    finally:
        dist.destroy_process_group()


def _meet(store: dist.Store, world: World) -> dist.Store:
    """A corner of the store for the processes of this start alone.

    torchrun keeps its store when it starts the processes again, with the addresses of those that died: taken
    for those of now, the connection was refused or never answered (PyTorch 2.14; issue 135712 there). Its
    count of restarts is that of one machine. So process 0 names a corner, the others leave a name of their
    own in it, and whoever is listed there by process 0 has met the one of now: those of before knew another
    name.
    """
    own = secrets.token_hex(8)
    if world.leads:
        store.set(MEETING, own)
        names = [f"{own}/{rank}" for rank in range(1, world.size)]
        store.wait(names, MEETING_LIMIT)
        store.set(f"{own}/all", " ".join(store.get(name).decode() for name in names))
        return dist.PrefixStore(own, store)
    until = time.monotonic() + MEETING_LIMIT.total_seconds()
    while time.monotonic() < until:
        corner = store.get(MEETING).decode()
        store.set(f"{corner}/{world.rank}", own)
        if store.check([f"{corner}/all"]) and own in store.get(f"{corner}/all").decode().split():
            return dist.PrefixStore(corner, store)
        time.sleep(0.05)
    raise dist.DistStoreError(f"process 0 has not come within {MEETING_LIMIT}")


def check_config(config: Config, world: World) -> None:
    """Raise UserError for what several processes cannot do."""
    what, size, penalty = f"with {world.size} processes", config.batch_size, config.training.gradient_penalty
    if config.execution != "eager":
        raise UserError(f"execution={config.execution!r}: {what} steps run eagerly; use execution=eager")
    if penalty:
        why = f"{what} gradients are only there after the backward"
        raise UserError(f"training.gradient_penalty={penalty:g}: {why}; set it to 0 or use one process")
    if size < world.size:
        raise UserError(f"batch_size={size}: {what} each needs an image; use at least {world.size}")


def device_name(name: str, world: World) -> str:
    """The device of this process: its own GPU where there are any."""
    if world.size == 1 or name == "cpu":
        return name
    if name not in ("auto", "cuda"):
        need = f"{world.size} processes need a device each"
        raise UserError(f"device={name!r}: {need}; use device=cuda or device=cpu")
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if count == 0 and name == "auto":
        return "cpu"
    if max(world.local_size, world.local_rank + 1) > count:
        seen, most = f"PyTorch sees {count} GPUs of this machine", max(count, 1)
        raise UserError(f"--nproc-per-node={world.local_size}: {seen}; start {most}, or use device=cpu")
    return f"cuda:{world.local_rank}"


def check_last_batch(count: int, batch_size: int, world: World) -> None:
    """Raise UserError if the short last batch of an epoch has fewer images than there are processes."""
    rest = count % batch_size
    if 0 < rest < world.size:
        raise UserError(
            f"batch_size={batch_size}: the last batch of an epoch has {rest} of {count} images, fewer than "
            f"the {world.size} processes; use another batch_size or data.train_limit={count - rest}"
        )


class CollectiveFlags:
    """Asks all processes what one of them may know, so that all do it at one step: every `every` steps, where
    there is such a number, and where that lasts, every two seconds or at each longer step.

    Whether to stop, whether a checkpoint is due: signals reach one process, and clocks differ.
    """

    def __init__(self, world: World, every: int = 0) -> None:
        self.world, self.every = world, every
        self._gap = 0  # steps from the last question to the next
        self.begin(0)

    def begin(self, step: int) -> None:
        """Time counts from now on, behind this step; the next one is asked. What was before, an evaluation,
        says nothing of how long a step takes.
        """
        self._asked_at, self._asked, self._next = time.monotonic(), step, step

    def at(self, step: int, *questions: Callable[[], bool], ends: bool = False) -> list[bool]:
        """An answer to each question, yes where any process says so. Alone, at every step; where something
        `ends` with this one, in any case. All processes come here with the same steps.
        """
        if self.world.size == 1:
            return [asked() for asked in questions]
        if not (ends or step >= self._next or (self.every and step % self.every == 0)):
            return [False] * len(questions)
        now = time.monotonic()
        said = [float(asked()) for asked in questions]
        said.append((now - self._asked_at) / max(1, step - self._asked))  # a step's seconds here
        counts = self.world.sum_(torch.tensor(said, dtype=torch.float32, device=self.world.device))
        *answers, seconds = counts.tolist()  # sync: an answer for the host
        # By the sum of all clocks, which is the same number everywhere. At most twofold: a few fast steps do
        # not promise that those to come are, too.
        wanted = int(ASK_SECONDS * self.world.size / max(seconds, 1e-6))
        self._gap = max(1, min(wanted, 2 * self._gap))
        self._asked_at, self._asked, self._next = now, step, step + self._gap
        return [count > 0 for count in answers]
