"""Which run a new process goes on with: an unfinished one of the same config, data and kind of device."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from ampcompare.checkpoint.files import CheckpointError, Store, peek, read
from ampcompare.config.canonical import canonical
from ampcompare.config.options import Role
from ampcompare.config.schema import Config, with_role
from ampcompare.data.sources import SOURCES
from ampcompare.errors import UserError, reason
from ampcompare.machine.device import is_channels_last
from ampcompare.machine.processes import World

# What may differ between the parts of a run: nothing in it touches the numbers. `epochs` is not among them,
# since it is the length of the schedule.
MAY_DIFFER = with_role(Role.MAY_DIFFER, Role.BOOKKEEPING)
FOLDER = "checkpoints"
TRAIN_DATA = "train_data"


@dataclass(frozen=True)
class Identity:
    """What has to be the same for a run to go on: config (but for what is free), data, kind of device."""

    config: Config
    data: str
    device_type: str
    processes: int = 1
    sources: Mapping[str, Any] = field(default_factory=dict)  # of what is not ours: hashes of files, versions
    train_data: str = ""  # where `data` leaves them out

    def values(self) -> dict[str, Any]:
        """By name; the first names are those of options."""
        last = is_channels_last(self.config, torch.device(self.device_type))
        layout = {"memory_format": "channels_last" if last else "contiguous"}
        settings = canonical(self.config.to_dict() | layout)
        config = {key: value for key, value in settings.items() if key not in MAY_DIFFER}
        here = {"device": self.device_type, "data": self.data, "processes": self.processes}
        if self.train_data:
            here[TRAIN_DATA] = self.train_data
        return {**config, **here, **self.sources}

    def differences(self, state: Mapping[str, Any]) -> list[str]:
        """In what a checkpoint differs, `key (theirs there, ours here)` each."""
        here, there = self.values(), state["identity"]
        keys = sorted(key for key in here.keys() | there.keys() if here.get(key) != there.get(key))
        told = {key: f"{key} ({there.get(key)} there, {here.get(key)} here)" for key in keys}
        if "data" in told:
            told["data"] = f"data (other {'images' if self.config.data.source in SOURCES else 'data'})"
        if TRAIN_DATA in told:
            told[TRAIN_DATA] = "the training data (others for the same seed)"
        return list(told.values())


@dataclass(frozen=True)
class Resumed:
    """A run to go on with: its folder, taken by this process, and its state.

    One whose id was given may be `finished` already: a job put back into its queue as it ended.
    """

    store: Store
    state: dict[str, Any]
    finished: bool = False


def find(identity: Identity, total_steps: int, say: Callable[[str], None]) -> Resumed | None:
    """The run to go on with, as `resume` says; None to start a new one.

    Where WANDB_RUN_ID is given (a sweep tries a run again) it is that run, a finished one, too; otherwise the
    newest one in output_dir that is unfinished, of the same config, and that no other process has. Raises
    UserError for a given run of another config or one that is still going on.
    """
    config, run_id = identity.config, os.environ.get("WANDB_RUN_ID")
    top = Path(config.output_dir) / FOLDER
    if not writes_checkpoints(config) and config.resume == "never":
        return None
    others: list[str] = []
    for store, state in _candidates(top, run_id, say):
        name = store.folder.name
        finished = is_finished(store, state, total_steps)
        if finished and (run_id is None or config.resume == "never"):
            continue
        differences = identity.differences(state)
        if config.resume == "never":
            if not differences and not run_id and store.lock():
                store.unlock()
                stopped = f"run {name} of this config stopped at step {state['fit']['step']}"
                say(f"{stopped}: resume=auto goes on with it; this is a new run")
                return None
            continue
        if differences:
            more = ", ..." if differences[5:] else ""
            others.append(f"run {name} differs in {', '.join(differences[:5])}{more}")
            if run_id:
                advice = "give it the same options, or use resume=never"
                raise UserError(f"resume={config.resume}: {others[0]}; {advice}")
            continue
        if finished:
            return Resumed(store, state, finished=True)
        if not store.lock():
            others.append(f"run {name} is going on in another process")
            if run_id:
                raise UserError(f"resume={config.resume}: {others[0]}; wait for it, or use resume=never")
            continue
        whole = store.load(say)
        if whole and not identity.differences(whole) and not is_finished(store, whole, total_steps):
            return Resumed(store, whole)
        store.unlock()
    if others and config.resume == "auto":
        say(f"resume=auto: this is a new run; {others[0]}")
    return None


def find_together(
    identity: Identity, total_steps: int, say: Callable[[str], None], world: World
) -> Resumed | None:
    """`find` by process 0, the answer for all. Raises UserError in each."""
    found: Resumed | None = None
    with world.agree():
        if world.leads:
            found = find(identity, total_steps, say)
    told = (str(found.store.folder), str(found.store.loaded), found.finished) if found else None
    (theirs,) = world.share([told])
    with world.agree():
        if theirs is not None and found is None:
            folder, path, finished = theirs
            try:
                found = Resumed(Store(Path(folder)), {} if finished else read(Path(path)), finished)
            except CheckpointError as problem:
                what = f"process {world.rank} cannot read {path} ({problem}), which process 0 goes on from"
                raise UserError(f"resume: {what}; output_dir has to be one folder for all machines") from None
    return found


def is_finished(store: Store, state: Mapping[str, Any], total_steps: int) -> bool:
    """Whether there is nothing left to do, neither to train (more `max_steps` are) nor to record."""
    step = state["fit"]["step"]
    return step >= total_steps and state["fit"]["evaluated"] and store.is_recorded(step)


def _candidates(
    top: Path, run_id: str | None, say: Callable[[str], None]
) -> Iterator[tuple[Store, dict[str, Any]]]:
    """Runs with a readable checkpoint, newest first, each with what its newest one says."""
    try:
        if run_id is None:
            folders = [path for path in top.iterdir() if path.is_dir()] if top.is_dir() else []
        else:
            folders = [top / run_id] if is_run_id(run_id) else []
        stores = [(store, files) for store in map(Store, folders) if (files := store.files())]
        found = [(max(f.stat().st_mtime_ns for f in files), store, files) for store, files in stores]
    except OSError as problem:
        why = f"cannot be read ({reason(problem)})"
        raise UserError(f"resume: {top} {why}; mend it, or use resume=never") from None
    for _, store, files in sorted(found, key=lambda entry: entry[0], reverse=True):
        for path in files:
            try:
                state = peek(path)
            except CheckpointError:  # said when the run is taken
                continue
            if _has_shape(state):
                yield store, state
                break
        else:
            say(f"none of the checkpoints in {store.folder} can be read: passed over")


def _has_shape(state: Mapping[str, Any]) -> bool:
    fit = state.get("fit")
    is_fit = isinstance(fit, dict) and isinstance(fit.get("step"), int) and "evaluated" in fit
    return is_fit and isinstance(state.get("identity"), dict)


def is_run_id(text: str) -> bool:
    """Whether it can be the name of a folder, too; W&B says no to the others."""
    return re.fullmatch(r"[^/\\#?%:\x00-\x1f]{1,128}", text) is not None and text not in (".", "..")


def writes_checkpoints(config: Config) -> bool:
    return config.checkpoint.every_epochs is not None or config.checkpoint.every_minutes is not None
