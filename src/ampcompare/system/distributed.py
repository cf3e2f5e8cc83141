"""The processes that train one model together: their ranks, devices and collectives.

`torchrun --nproc-per-node=N run_experiment.py ...` starts one process for each device. `batch_size` counts
the samples of all processes together. Each process takes every N-th image of a batch, so a run on N devices
sees the same batches as a run on one device. Only the main process (rank 0) writes the record and the
console.
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

_RUN_NUMBERS = count()  # numbers the runs of this process


@dataclass(frozen=True)
class DistributedContext:
    """This process among the processes of a run. In a run of one process every collective does nothing.

    Attributes:
        rank: The number of this process among all processes, from 0.
        size: The number of processes.
        local_rank: The number of this process among the processes of this machine.
        local_size: The number of processes of this machine.
        device: The device of this process.
    """

    rank: int = 0
    size: int = 1
    local_rank: int = 0
    local_size: int = 1
    device: torch.device = torch.device("cpu")

    @property
    def is_main_process(self) -> bool:
        """Return whether this process writes the record and the console."""
        return self.rank == 0

    def sum_(self, tensor: Tensor) -> Tensor:
        """Sum the tensor over all processes in place, queued on the device, and return it."""
        if self.size > 1:
            dist.all_reduce(tensor)
        return tensor

    def mean_(self, tensor: Tensor) -> Tensor:
        """Average the tensor over all processes in place; inf and nan of any process stay in the mean."""
        return self.sum_(tensor).div_(self.size) if self.size > 1 else tensor

    def start_max_(self, tensor: Tensor) -> Any:
        """Start to take the maximum over all processes in place.

        Returns:
            The work of torch.distributed. The tensor has the maximum after its `wait()`.
        """
        return dist.all_reduce(tensor, dist.ReduceOp.MAX, async_op=True)

    def broadcast(self, values: list[Any]) -> list[Any]:
        """Replace the values by those of the main process, and return them."""
        if self.size > 1:
            dist.broadcast_object_list(values)
        return values

    def gather(self, value: Any) -> list[Any]:
        """Return the value of each process, by rank, in all processes."""
        values: list[Any] = [value]
        if self.size > 1:
            values = [None] * self.size
            dist.all_gather_object(values, value)
        return values

    def any_rank(self, *flags: bool) -> list[bool]:
        """Return for each flag whether it is true in any process.

        A signal reaches one process only, and clocks differ between machines. Call it in all processes at the
        same points. The hosts wait for each other, not for their devices.
        """
        if self.size == 1:
            return [*flags]
        return self.sum_(torch.tensor(flags).int()).bool().tolist()

    def broadcast_buffers(self, model: nn.Module) -> None:
        """Copy the buffers of the main process to all processes.

        Otherwise each process keeps the BatchNorm statistics of its own images.
        """
        if self.size > 1:
            for buffer in model.buffers():
                dist.broadcast(buffer, 0)

    @contextmanager
    def main_process_first(self) -> Iterator[None]:
        """Run the body in the main process first, then in the others, for example to fill a cache."""
        if self.size > 1 and not self.is_main_process:
            dist.barrier()
        try:
            yield
        finally:
            if self.size > 1 and self.is_main_process:
                dist.barrier()

    @contextmanager
    def raise_on_all_ranks(self) -> Iterator[None]:
        """Raise a UserError of the body in all processes, whichever process it came from.

        The body must have no collectives: a process that has raised would leave the others waiting.

        Raises:
            UserError: The error of this process, or else that of the lowest rank with one.
        """
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
    """Shares requests (to stop, to save) between processes, without a wait in each step.

    Each poll starts an asynchronous all-reduce of the requests and reads the result of the previous one,
    which has arrived meanwhile. All processes therefore learn of a request one step later. Where a step takes
    longer than `SLOW`, the all-reduce is read at once: the wait costs little there, and a batch system that
    takes the machine away may not allow another step. All processes read the same result, so they also agree
    on whether steps are slow.

    Args:
        world: The processes of the run.
    """

    SLOW = 0.25  # seconds

    def __init__(self, world: DistributedContext) -> None:
        self.world = world
        self._is_slow = True  # until the first step is timed
        self._polled_at = time.monotonic()
        self._exchange: tuple[Any, Tensor] | None = None

    def poll(self, *requests: bool, blocking: bool = False) -> list[bool]:
        """Return for each request whether any process makes it, in this poll or in an earlier one.

        Call it in all processes at the same points and with the same `blocking`. The hosts wait for each
        other, not for their devices.

        Args:
            requests: The requests of this process.
            blocking: Whether to wait for the requests of this poll.
        """
        if self.world.size == 1:
            return [*requests]
        before = self._read(len(requests))
        now = time.monotonic()
        mine = torch.tensor([*requests, now - self._polled_at], dtype=torch.float64)
        self._polled_at = now
        self._exchange = self.world.start_max_(mine), mine
        if not (blocking or self._is_slow):
            return before
        return [*map(operator.or_, before, self._read(len(requests)))]

    def _read(self, count: int) -> list[bool]:
        if self._exchange is None:
            return [False] * count
        work, values = self._exchange
        self._exchange = None
        work.wait()  # sync: of the hosts, not of their devices
        *requests, seconds = values.tolist()
        self._is_slow = seconds > self.SLOW
        return [request > 0 for request in requests]


def is_peer_failure(problem: Exception) -> bool:
    """Return whether PyTorch raised this because another process of the run has ended."""
    return isinstance(problem, RuntimeError) and (
        isinstance(problem, dist.DistError) or "gloo" in str(problem).lower()
    )


def find_distributed_context() -> DistributedContext:
    """Return ranks and size of the processes that were started together, without a device.

    They come from torch.distributed if it is initialized (in a user's own loop), else from the environment
    variables of torchrun.
    """
    if dist.is_available() and dist.is_initialized():
        return DistributedContext(dist.get_rank(), dist.get_world_size())
    names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")
    texts = (os.environ.get(name) or default for name, default in zip(names, "0101", strict=True))
    rank, size, local_rank, local_size = map(int, texts)
    if size < 2:
        return DistributedContext()
    return DistributedContext(rank, size, local_rank, local_size)


@contextmanager
def connect_processes(device: str) -> Iterator[DistributedContext]:
    """Yield the context of this process, with the processes connected while the body runs.

    Args:
        device: The option `device`, such as `auto` or `cuda`.

    Raises:
        UserError: The device does not exist, or torchrun's variables are incomplete.
    """
    world = find_distributed_context()
    world = replace(world, device=resolve_device(local_device_name(device, world)))
    if world.size == 1:
        yield world
        return
    try:
        store, *_ = next(dist.rendezvous("env://", world.rank, world.size))
    except ValueError as problem:  # a variable that torchrun sets is missing, or is no number
        raise UserError(
            f"WORLD_SIZE={world.size}: {reason(problem)}; start the processes with torchrun, "
            "or unset WORLD_SIZE to use one process"
        ) from None
    # torchrun keeps its store when it restarts the processes of a machine, with the addresses of the dead
    # processes. A new process would connect to such an address and be refused or wait forever (PyTorch 2.14;
    # pytorch issue 135712). So each restart, and each run within it, has its own prefix in the store.
    store = dist.PrefixStore(f"{os.environ.get('TORCHELASTIC_RESTART_COUNT', 0)}/{next(_RUN_NUMBERS)}", store)
    backend = "cpu:gloo,cuda:nccl" if is_cuda(world.device) else "gloo"
    dist.init_process_group(backend, store=store, rank=world.rank, world_size=world.size)
    try:
        yield world
    finally:
        dist.destroy_process_group()


def local_device_name(name: str, world: DistributedContext) -> str:
    """Return the name of this process's device: with several processes, its own GPU if there are GPUs.

    Raises:
        UserError: The processes cannot have a device each.
    """
    if world.size == 1 or name == "cpu":
        return name
    if name not in ("auto", "cuda"):
        raise UserError(
            f"device={name!r}: each of the {world.size} processes needs its own device; "
            "use device=cuda or device=cpu"
        )
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if count == 0 and name == "auto":
        return "cpu"
    if max(world.local_size, world.local_rank + 1) > count:
        raise UserError(
            f"--nproc-per-node={world.local_size}: PyTorch sees {count} GPUs on this machine; "
            f"start {max(count, 1)}, or use device=cpu"
        )
    return f"cuda:{world.local_rank}"


def check_last_batch(count: int, batch_size: int, world: DistributedContext) -> None:
    """Raise UserError if the short last batch of an epoch has fewer samples than there are processes."""
    rest = count % batch_size
    if 0 < rest < world.size:
        raise UserError(
            f"batch_size={batch_size}: the last batch of an epoch has {rest} of {count} samples, fewer than "
            f"the {world.size} processes; use another batch_size or data.train_limit={count - rest}"
        )
