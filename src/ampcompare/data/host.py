"""Batches made on the host: of a map-style data set by workers, or by somebody's own loader.

Both have the interface of the loaders on the device but for plans, and so none of their batches can be part
of a captured CUDA graph. A wait is one of the host for the data, never for the device.
"""

from __future__ import annotations

import multiprocessing
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from itertools import chain, count
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader
from torch.utils.data import Dataset as TorchDataset

from ampcompare import plugins
from ampcompare.data.batch import Batch, count_samples, each
from ampcompare.data.loader import draw_order
from ampcompare.data.onto import Onto
from ampcompare.data.pairs import Unfit, as_batch, digest
from ampcompare.data.seeded import Randomness, mix
from ampcompare.data.shares import Shares
from ampcompare.data.splits import BatchSet, Places, SampleSet, TensorSet
from ampcompare.data.workers import begin, loss_of_worker

END = object()


class Watch:
    """Whether an epoch begins again with the batch that it began with before the run was interrupted.

    What a checkpoint keeps of it is the first batch's digest; the answer is found as the epoch goes on.
    """

    def __init__(self, repeats: bool) -> None:
        self.repeats = repeats  # False once two beginnings differed
        self.say: Callable[[str], None] = lambda note: None
        self._epoch, self._first = -1, ""

    def see(self, epoch: int, batch: Batch) -> None:
        """The first batch of an epoch, on the host."""
        found = digest(batch)
        if epoch == self._epoch and found != self._first:
            self.repeats = False
            self.say(
                f"epoch {epoch + 1} goes on with other batches than it began with: its loader does not give "
                "the same again, and this run is not what it would have been without the interruption"
            )
        self._epoch, self._first = epoch, found

    def state_dict(self) -> dict[str, Any]:
        return {"epoch": self._epoch, "first": self._first, "repeats": self.repeats}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._epoch, self._first = int(state["epoch"]), str(state["first"])
        self.repeats &= bool(state["repeats"])


class Failure:
    """What went wrong in a worker, in words: its exception would come as a traceback in a message."""

    def __init__(self, problem: BaseException, file: Path | None) -> None:
        self.words = str(problem) if isinstance(problem, Unfit) else plugins.what_happened(problem, file)


class _Fetch(TorchDataset[Any]):
    """What a worker has: places in, a batch or a Failure out."""

    def __init__(self, data: SampleSet | TensorSet) -> None:
        self.data = data

    def __getitem__(self, places: Places) -> Batch | Failure:
        try:
            return self.data.batch(places)
        except (Exception, SystemExit) as problem:
            return Failure(problem, getattr(self.data, "file", None))


class _Queue:
    """The sampler of a DataLoader that lives longer than an epoch: what is to be fetched next."""

    def __init__(self) -> None:
        self.places: Iterable[Places] = ()

    def __iter__(self) -> Iterator[Places]:
        return iter(self.places)


def _as_it_is(found: Any) -> Any:
    return found


class SampleLoader(Shares):
    """Batches of a map-style data set (or of tensors too large for the device), made by `workers` processes.

    Order and random choices are functions of (seed, epoch, position): the same batches with any number of
    workers and processes, and from batch k on after a resume. 0 workers: this process makes them.
    """

    def __init__(
        self,
        data: SampleSet | TensorSet,
        *,
        name: str,
        batch_size: int,
        device: torch.device | str,
        shuffle: bool = False,
        seed: int = 0,
        workers: int = 0,
        channels_last: bool = False,
        pinned: bool = False,
        rank: int = 0,
        processes: int = 1,
    ) -> None:
        super().__init__(len(data), batch_size, rank, processes)
        self.name, self.shuffle, self.seed = name, shuffle, seed
        self.watch = Watch(getattr(data, "repeats", True))
        self._onto = Onto(torch.device(device), pinned, channels_last)
        self._queue = _Queue()
        # Forked, they have the modules of files, which no other process can import by name.
        forks = workers and "fork" in multiprocessing.get_all_start_methods()
        self._loader = DataLoader(
            _Fetch(data),
            batch_size=None,
            sampler=self._queue,
            num_workers=workers,
            collate_fn=_as_it_is,
            pin_memory=pinned,
            multiprocessing_context="fork" if forks else None,
            generator=torch.Generator(),  # else each epoch would draw from the global one
            persistent_workers=workers > 0,
        )

    def epoch(self, epoch: int, start: int = 0) -> Iterator[Batch]:
        """Yield inputs and targets, [B, ...] each, from batch `start` on: the same as skipping `start`."""
        yield from self._onto.all(self._on_host(epoch, start))

    def _on_host(self, epoch: int, start: int) -> Iterator[Batch]:
        order = draw_order(self.sample_count, self.seed, epoch, self.shuffle)
        # After a resume: is the beginning of the epoch what it was?
        pieces = [*(self.slices()[:1] if start else []), *self.slices(start)]
        all_places = (self._places(epoch, order, piece) for piece in pieces)
        self._queue.places = (places for places in all_places if places.indices)
        with _blame(self._loader, self.name, f"epoch {epoch} does not begin"):
            batches = begin(self._loader)
        first = True
        for number in chain([0] if start else [], count(start)):
            found = self._next(batches, number, epoch)
            if found is END:
                return
            if first and self.rank == 0:  # the checkpoint has what its process saw
                self.watch.see(epoch, found)
            if not (first and start):
                yield found
            first = False

    def _places(self, epoch: int, order: Tensor, piece: slice) -> Places:
        return Places(self.seed, epoch, piece.start, piece.step, order[piece].tolist())

    def _next(self, batches: Iterator[Any], number: int, epoch: int) -> Any:
        what = f"no batch {number} of epoch {epoch}"
        with _blame(self._loader, self.name, what):
            found = next(batches, END)
        if isinstance(found, Failure):
            raise plugins.DATA.refusal(self.name, f"{what} ({found.words})")
        return found


class BatchLoader:
    """Somebody's loader, as it is, its batches put on the device.

    Its generators are seeded as an epoch begins, of (seed, epoch); batch k of an epoch is had by skipping k.
    Where it is deterministic the same batches come again after a resume; `watch` finds out where it is not.
    Several processes all run it, and each keeps its share of each batch.
    """

    def __init__(
        self,
        data: BatchSet,
        *,
        name: str,
        device: torch.device | str,
        seed: int = 0,
        channels_last: bool = False,
        pinned: bool = False,
        rank: int = 0,
        processes: int = 1,
        trains: bool = True,
    ) -> None:
        self.data, self.name, self.seed, self.trains = data, name, seed, trains
        self.rank, self.processes = rank, processes
        self.batch_size = data.batch_size or count_samples(data.sample[0])
        self.watch = Watch(data.repeats)
        self._onto = Onto(torch.device(device), pinned, channels_last)
        self._sizes: list[int] = []  # of the batches of the last epoch from its beginning

    def __len__(self) -> int:
        return self.data.batches

    @property
    def sample_count(self) -> int:
        """Samples in an epoch: as many as the last whole one had, as it tells, or of equal batches."""
        if len(self._sizes) == len(self):
            return sum(self._sizes)
        return len(self) * self.batch_size if self.data.samples is None else self.data.samples

    def positions(self) -> Tensor:
        """Where this process's samples lay in the last whole epoch, int64 [own] on the CPU."""
        own, first = [], 0
        for size in self._sizes:
            own.append(torch.arange(first + self.rank, first + size, self.processes))
            first += size
        return torch.cat(own)

    def epoch(self, epoch: int, start: int = 0) -> Iterator[Batch]:
        """Yield inputs and targets, [B, ...] each, from batch `start` on."""
        yield from (batch for batch, _ in self.shares(epoch, start))

    def shares(self, epoch: int, start: int = 0) -> Iterator[tuple[Batch, int]]:
        """The same with the samples of each batch in all processes."""
        if not 0 <= start <= len(self):
            raise ValueError(f"start={start}: an epoch has {len(self)} batches")
        self._sizes = []
        for number, whole in enumerate(self._on_host(epoch)):
            size = count_samples(whole[0])
            self._sizes.append(size)
            if number < start:
                continue
            if self.trains and size < self.processes:
                why = f"has {size} samples, fewer than the {self.processes} processes"
                raise plugins.DATA.refusal(self.name, f"batch {number} of epoch {epoch} {why}")
            own = self._own(whole)
            if count_samples(own[0]):
                yield self._onto.one(own), size

    def _own(self, whole: Batch) -> Batch:
        if self.processes == 1:
            return whole
        share = slice(self.rank, None, self.processes)
        inputs, targets = (each(field, lambda tensor: tensor[share]) for field in whole)
        return inputs, targets

    def _on_host(self, epoch: int) -> Iterator[Batch]:
        batches = read(self.data.loader, self.name, self.data.file, self.seed, epoch)
        for number in range(len(self)):
            found = next(batches, None)
            if found is None:
                why = f"gave {number} of the {len(self)} batches that its len promises in epoch {epoch}"
                todo = "it has to begin anew each time, and to tell its length"
                raise plugins.DATA.refusal(self.name, f"the loader {why}; {todo}")
            if number == 0:
                self.watch.see(epoch, found)
            yield found


def read(loader: Any, name: str, file: Path, seed: int, epoch: int) -> Iterator[Batch]:
    """The batches of somebody's loader on the host, its random choices those of (seed, epoch).

    Samplers and in-process loaders draw from the global generators while they are read: then those are its
    own, for 0.4 ms a batch.
    Raises UserError for whatever it raises, and for what is no batch; RuntimeError for the loss of a worker.
    """
    word = mix(seed, epoch)
    randomness = Randomness(word)
    what = f"no batch 0 of epoch {epoch}"
    with _blame(loader, name, what, file), randomness.on():
        _seed(loader, word, epoch)
        batches = begin(loader)
    number = 0
    while True:
        what = f"no batch {number} of epoch {epoch}"
        try:
            with randomness.on():
                found = next(batches, END)
            if found is END:
                return
            batch = as_batch(found, f"batch {number} of epoch {epoch}")
        except Unfit as problem:
            raise plugins.DATA.refusal(name, str(problem)) from None
        except (Exception, SystemExit) as problem:
            if lost := loss_of_worker(problem, getattr(loader, "num_workers", 0)):
                raise lost from None
            raise plugins.DATA.refusal(name, f"{what} ({_words(problem, file)})") from None
        yield batch
        number += 1


@contextmanager
def _blame(loader: Any, name: str, what: str, file: Path | None = None) -> Iterator[None]:
    """As `plugins.blame`. But the death of a worker is no mistake in the data: it may come of a signal to the
    whole job, or of a want of memory.
    """
    lost = None
    with plugins.blame(plugins.DATA, name, what, file):
        try:
            yield
        except Exception as problem:
            if not (lost := loss_of_worker(problem, getattr(loader, "num_workers", 0))):
                raise
    if lost is not None:
        raise lost from None


def _seed(loader: Any, seed: int, epoch: int) -> None:
    """Seed the generators that a DataLoader and its samplers have, and tell them the epoch."""
    batch_sampler = getattr(loader, "batch_sampler", None)
    parts = (loader, getattr(loader, "sampler", None), batch_sampler, getattr(batch_sampler, "sampler", None))
    for part in (*parts, getattr(loader, "dataset", None)):
        if isinstance(generator := getattr(part, "generator", None), torch.Generator):
            generator.manual_seed(seed)
        if callable(tell := getattr(part, "set_epoch", None)):
            tell(epoch)


def _words(problem: BaseException, file: Path) -> str:
    """What happened, in a worker of the loader too: PyTorch puts the traceback from there in the message."""
    text = str(problem)
    if not (caught := re.match(r"Caught (\w+) in DataLoader worker process", text)):
        return plugins.what_happened(problem, file)
    places = re.findall(rf'File "{re.escape(str(file))}", line (\d+)', text)
    said = [line for line in text.splitlines() if re.match(rf"(\w+\.)*{caught[1]}\b", line)]
    what = said[-1][:300] if said else caught[1]
    return f"line {places[-1]}: {what}" if places else what
