"""Several processes train one model: who is who, and the few things they say to each other.

Started by `torchrun --nproc-per-node=N run_experiment.py ...`, each process has a device of its own.
`batch_size` is that of all together; each takes every N-th image of a batch, so that a run on N devices sees
the batches of a run on one. Process 0 alone writes: the record, the console.
"""

import operator
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import count
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from ampcompare.errors import UserError, reason
from ampcompare.system.device import is_cuda, resolve_device

RUNS = count()  # of this process


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

    def begin_max_(self, tensor: Tensor) -> Any:
        """Begin to take the maximum over all processes, in place. Returns the work, whose `wait` ends it."""
        return dist.all_reduce(tensor, dist.ReduceOp.MAX, async_op=True)

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

    def any(self, *said: bool) -> list[bool]:
        """Of each whether any process says so: a signal reaches one of them, and clocks differ. Called in all
        at the same places; hosts wait for each other, none for its device.
        """
        return [*said] if self.size == 1 else self.sum_(torch.tensor(said).int()).bool().tolist()

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


class Polling:
    """Requests of any process (to stop, to save), agreed by all at one step without a wait in each step.

    Each poll begins an asynchronous all-reduce of the requests, and reads that of the poll before, which has
    come meanwhile. All processes so learn of a request one step later. Where a step takes longer than `SLOW`
    the all-reduce is read at once: a wait costs nothing there, and a batch system that takes the machine
    away gives no time for another step. What is read is the same in all processes, and so they agree on how
    to go on, too.
    """

    SLOW = 0.25  # seconds

    def __init__(self, world: World) -> None:
        self.world = world
        self._is_slow = True  # until the first step is timed
        self._polled_at = time.monotonic()
        self._exchange: tuple[Any, Tensor] | None = None

    def poll(self, *requests: bool, blocking: bool = False) -> list[bool]:
        """Return for each request whether any process makes it: in this poll or in one before.

        Called in all processes at the same places, with the same `blocking`: whether to wait for the requests
        of this very poll. Hosts wait for each other, none for its device.
        """
        if self.world.size == 1:
            return [*requests]
        before = self._read(len(requests))
        now = time.monotonic()
        mine = torch.tensor([*requests, now - self._polled_at], dtype=torch.float64)
        self._polled_at = now
        self._exchange = self.world.begin_max_(mine), mine
        if not (blocking or self._is_slow):
            return before
        return [*map(operator.or_, before, self._read(len(requests)))]

    def _read(self, count: int) -> list[bool]:
        if self._exchange is None:
            return [False] * count
        work, values = self._exchange
        self._exchange = None
        work.wait()  # of hosts
        *requests, seconds = values.tolist()
        self._is_slow = seconds > self.SLOW
        return [request > 0 for request in requests]


def is_loss_of_another(problem: Exception) -> bool:
    """Whether it is what PyTorch raises where another process has ended."""
    return isinstance(problem, RuntimeError) and (
        isinstance(problem, dist.DistError) or "gloo" in str(problem).lower()
    )


def this_world() -> World:
    """This process among those that were started together: as torch.distributed has it where it is up, in
    somebody's own loop, else by torchrun's variables. Without device.
    """
    if dist.is_available() and dist.is_initialized():
        return World(dist.get_rank(), dist.get_world_size())
    names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")
    texts = (os.environ.get(name) or default for name, default in zip(names, "0101", strict=True))
    rank, size, local_rank, local_size = map(int, texts)
    return World(rank, size, local_rank, local_size) if size > 1 else World()


@contextmanager
def join(device: str) -> Iterator[World]:
    """The world of this process, with its device (by the option's name), its processes connected. Raises
    UserError.
    """
    world = this_world()
    world = replace(world, device=resolve_device(device_name(device, world)))
    if world.size == 1:
        yield world
        return
    try:
        store, *_ = next(dist.rendezvous("env://", world.rank, world.size))
    except ValueError as problem:  # a variable that torchrun sets is missing, or is no number
        todo = "start the processes by torchrun, or unset WORLD_SIZE for one alone"
        raise UserError(f"WORLD_SIZE={world.size}: {reason(problem)}; {todo}") from None
    # torchrun keeps its store when it starts the processes of a machine again, with the addresses of those
    # that died: taken for those of now, the connection is refused or never answered (PyTorch 2.14; issue
    # 135712 there). So each start has a corner of its own in it, and each run of a start.
    store = dist.PrefixStore(f"{os.environ.get('TORCHELASTIC_RESTART_COUNT', 0)}/{next(RUNS)}", store)
    backend = "cpu:gloo,cuda:nccl" if is_cuda(world.device) else "gloo"
    dist.init_process_group(backend, store=store, rank=world.rank, world_size=world.size)
    try:
        yield world
    finally:
        dist.destroy_process_group()


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
