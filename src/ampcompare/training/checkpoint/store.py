"""The checkpoints in an output folder: their files, their lock, and which run to resume.

Each run has its own folder. `run.json` has the identity of the run (what must be equal to resume it) and the
step at which it ended; nothing else is read to find a run. `torch.save` writes a checkpoint, and it is put in
place as a whole. Reading checks the checksums of the archive first, which `torch.load` does not, and
unpickles only tensors and plain values. The last two checkpoints are kept, and the best one of those saved
after an evaluation, with `.best` in its name. Of a run that has ended, the last and the best are kept. The
last one before the first anomaly (a loss that is not finite, a skipped step after the loss scale had settled)
is kept as well, so that `why diff --at` starts there; `run.json` has its step as `before_anomaly`.
"""

import io
import json
import logging
import re
from collections.abc import Collection, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import torch
from filelock import FileLock, Timeout

from ampcompare.config.schema import Config
from ampcompare.data.sources import SOURCES
from ampcompare.errors import UserError, reason
from ampcompare.identity.agreement import RESUME
from ampcompare.identity.run_identity import DATA, TRAIN_DATA, Difference, RunIdentity, differences, name_of
from ampcompare.runtime.atomic_files import replacing

log = logging.getLogger(__name__)

FORMAT = 6  # raise it when what a checkpoint holds changes
FORMAT_UNKNOWN = 0  # of checkpoints whose run.json is missing
FOLDER = "checkpoints"
MAX_SHOWN = 5  # differences in a message
_NAME = re.compile(r"step-\d{9}(\.best)?\.pt")


class CheckpointError(Exception):
    """The file is not a complete checkpoint."""


class NotResumable(Exception):
    """A run cannot be resumed.

    The message continues `run NAME`: it says why.

    Attributes:
        advice: What the user can do.
        is_other_format: Whether its checkpoints are of another version of AMP Compare.
    """

    def __init__(self, why: str, advice: str, *, is_other_format: bool = False) -> None:
        super().__init__(why)
        self.advice = advice
        self.is_other_format = is_other_format


def read_checkpoint(path: Path) -> dict[str, Any]:
    """Return the content of a checkpoint, its tensors on the CPU.

    Raises:
        CheckpointError: The file is not a complete checkpoint.
    """
    try:
        with ZipFile(path) as archive:
            damaged = archive.testzip()
        if damaged is None:
            return torch.load(path, map_location="cpu", weights_only=True)
    except Exception as problem:  # damage raises a dozen types of exception in both readers
        raise CheckpointError(f"it cannot be read: {reason(problem)}") from None
    raise CheckpointError(f"the checksum of {damaged} does not match")


class CheckpointStore:
    """The folder of one run's checkpoints."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._lock = FileLock(folder / "lock")
        self._is_begun = False  # whether the files in the folder are of this run
        self._before_anomaly: int | None = None  # the step of the checkpoint that is kept for it

    def lock(self) -> bool:
        """Lock the folder for this process until it ends; return False if another process has it."""
        if not self._lock.is_locked:
            self.folder.mkdir(parents=True, exist_ok=True)
            try:
                self._lock.acquire(blocking=False)
            except Timeout:
                return False
        return True

    def unlock(self) -> None:
        """Release the lock."""
        self._lock.release()

    def files(self) -> list[Path]:
        """Return the checkpoint files, newest first, by step.

        Raises:
            OSError: The folder cannot be read.
        """
        if not self.folder.is_dir():
            return []
        checkpoints = [path for path in self.folder.iterdir() if _NAME.fullmatch(path.name)]
        # Of two files of one step, the one with `.best` comes first.
        return sorted(checkpoints, key=lambda path: (_step_of(path), _is_best(path)), reverse=True)

    def read_description(self) -> dict[str, Any]:
        """Return what `run.json` says: `format`, `identity`, and the step at which the run `ended`, 0 before.

        The format is None without checkpoints, FORMAT_UNKNOWN for checkpoints without `run.json`.

        Raises:
            OSError: It cannot be read.
            ValueError: It is no JSON.
        """
        if not self.files():
            return {"format": None}
        try:
            return {"format": None} | json.loads((self.folder / "run.json").read_bytes())
        except FileNotFoundError:
            return {"format": FORMAT_UNKNOWN, "ended": 0}

    def _write_description(self, identity: Mapping[str, Any], ended: int) -> None:
        """Write `run.json`, with the facts that must be equal to resume the run."""
        info = {"format": FORMAT, "identity": identity, "ended": ended}
        if self._before_anomaly is not None:
            info["before_anomaly"] = self._before_anomaly
        with replacing(self.folder / "run.json") as file:
            file.write(json.dumps(info, indent=1).encode())

    def save(
        self,
        state: Mapping[str, Any],
        identity: Mapping[str, Any],
        *,
        best: bool = False,
        anomaly: int | None = None,
    ) -> None:
        """Write the state, and remove the files that are not kept.

        If this run is new, files that an earlier run of the same name left are removed too. On return the
        state is on the disk.

        Args:
            state: The state of the run, with its `step`.
            identity: The facts that must be equal to resume the run (`saved_identity`).
            best: Whether the last evaluation is the best so far.
            anomaly: The first step with an anomaly; None: there is none.

        Raises:
            OSError: The state could not be written; earlier checkpoints are unchanged.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        before = [] if self._is_begun else self.files()
        self._note_anomaly(anomaly, identity)
        if not self._is_begun or not (self.folder / "run.json").exists():
            # First: without it the checkpoint would not be found.
            self._write_description(identity, 0)
        buffer = io.BytesIO()  # on a full disk PyTorch's own writer ends the process
        torch.save(state, buffer)
        path = self.folder / f"step-{state['step']:09d}{'.best' if best else ''}.pt"
        with replacing(path) as file:
            file.write(buffer.getbuffer())
        self._is_begun = True
        self._delete_all_but(2, {*before} - {path})

    def _note_anomaly(self, anomaly: int | None, identity: Mapping[str, Any]) -> None:
        """Choose the checkpoint before the first anomaly, and note it in `run.json`, once for a run."""
        if not self._is_begun or self._before_anomaly is not None:
            return
        self._before_anomaly = self.read_description().get("before_anomaly")  # of an earlier part of the run
        if self._before_anomaly is not None or anomaly is None:
            return
        earlier = [step for step in map(_step_of, self.files()) if step < anomaly]
        if earlier:
            self._before_anomaly = max(earlier)
            self._write_description(identity, 0)

    def end(self, step: int) -> None:
        """Note that the run ended at this step with a complete record, so it cannot be resumed."""
        try:
            description = self.read_description()
            if description["format"] == FORMAT:
                self._before_anomaly = description.get("before_anomaly")
                self._write_description(description["identity"], step)
                self._delete_all_but(1)
        except (OSError, ValueError) as problem:
            log.warning(
                f"the run's end could not be noted in {self.folder} ({reason(problem)}); "
                "resume=auto will end the run again"
            )

    def _delete_all_but(self, count: int, old: Collection[Path] = ()) -> None:
        """Delete all checkpoints but the newest ones, the best one, and the one before the first anomaly."""
        files = [file for file in self.files() if file not in old]
        bests = [file for file in files if _is_best(file)]
        before_anomaly = [file for file in files if _step_of(file) == self._before_anomaly]
        kept = {*files[:count], *bests[:1], *before_anomaly}
        temporary = self.folder.glob("*.tmp")  # from a process that was killed while writing
        for file in {*old, *files, *temporary} - kept:
            file.unlink(missing_ok=True)

    def load(self) -> dict[str, Any] | None:
        """Return the newest complete checkpoint, or None.

        A damaged checkpoint is reported, renamed and skipped.
        """
        for path in self.files():
            try:
                state = read_checkpoint(path)
            except CheckpointError as problem:
                renamed = path.replace(path.with_name(path.name + ".damaged"))
                log.warning(
                    f"checkpoint {path.name} is damaged ({problem}); it is skipped and renamed to {renamed}"
                )
                continue
            self._is_begun = True
            return state
        log.warning(f"none of the checkpoints in {self.folder} can be read")
        return None


def _step_of(path: Path) -> int:
    """Return the step of a checkpoint by the name of its file."""
    return int(path.name[5:14])


def _is_best(path: Path) -> bool:
    """Return whether a checkpoint was the best one when it was written, by the name of its file."""
    return path.name.endswith(".best.pt")


def saved_identity(identity: RunIdentity) -> dict[str, Any]:
    """Return the facts that must be equal to resume a run, as `run.json` has them."""
    return identity.named_parts(RESUME.roles)


def differences_from(saved: Mapping[str, Any], identity: RunIdentity) -> list[Difference]:
    """Return the facts in which a run's checkpoints and a run of now differ; a run must not, to be resumed.

    Args:
        saved: The identity in `run.json`, perhaps of another version.
        identity: The run of now.
    """
    found = differences(RunIdentity.of_parts(saved, is_complete=True), identity, RESUME.roles)
    return sorted(found, key=lambda difference: name_of(difference.key))


def describe_difference(difference: Difference, identity: RunIdentity) -> str:
    """Return a difference from a run's checkpoints, as `key (VALUE in that run, VALUE now)`."""
    images = "images" if identity.options.get("data.source") in SOURCES else "data"
    special = {
        DATA: f"data (different {images})",
        TRAIN_DATA: "the training data (different data for the same seed)",
    }
    key, there, here = difference
    if key in special:
        return special[key]
    return f"{name_of(key)} ({there} in that run, {here} now)"


def find_resumable(
    config: Config, identity: RunIdentity, total_steps: int, run_id: str | None = None
) -> tuple[CheckpointStore, dict[str, Any]] | None:
    """Return the run to resume, locked by this process, and its state; None: start a new run.

    If the run has an id (a sweep starts a run again), it is that run, and its state is empty if it has ended.
    Otherwise it is the newest run in output_dir that has not ended, has the same identity, and is not
    locked. With `resume=never` such a run is only mentioned.

    Args:
        config: It names the folder, and says whether to resume.
        identity: The run of now.
        total_steps: The steps of the whole run.
        run_id: The id of the run; None: it has none yet.

    Raises:
        UserError: The run with this id cannot be resumed, or an unfinished run is of an earlier version.
    """
    top = Path(config.output_dir) / FOLDER
    if config.resume != "auto":
        if not run_id:
            _mention_unfinished_run(top, identity, total_steps)
        return None
    passed_over: list[str] = []
    for store in map(CheckpointStore, [top / run_id] if run_id else _newest_first(top)):
        try:
            state = _lock_and_load(store, identity, total_steps, even_if_ended=bool(run_id))
        except NotResumable as obstacle:
            if run_id or obstacle.is_other_format:
                raise UserError(
                    f"resume=auto: run {store.folder.name} {obstacle}; {obstacle.advice}, or use resume=never"
                ) from None
            passed_over.append(f"run {store.folder.name} {obstacle}")
            continue
        if state is not None:
            return store, state
        if run_id and store.files():
            return store, {}
    if passed_over:
        log.warning(f"resume=auto: starting a new run, because {passed_over[0]}")
    return None


def _mention_unfinished_run(top: Path, identity: RunIdentity, total_steps: int) -> None:
    """Log the newest run that `resume=auto` would continue, if there is one."""
    for store in map(CheckpointStore, _newest_first(top)):
        with suppress(Exception):  # another program's folder, or one that is being removed
            description = store.read_description()
            if description["format"] != FORMAT or description["ended"] >= total_steps:
                continue
            try:
                _lock(store, description, identity)
            except NotResumable:
                continue
            store.unlock()
            newest = store.files()[0]
            log.info(
                f"run {store.folder.name} of this config stopped at step {_step_of(newest)}; "
                "resume=auto would continue it. This is a new run"
            )
            return


def _lock_and_load(
    store: CheckpointStore, identity: RunIdentity, total_steps: int, *, even_if_ended: bool
) -> dict[str, Any] | None:
    """Lock a run and return its newest state; None, not locked: it has ended, or has no checkpoint.

    Args:
        store: The folder of the run's checkpoints.
        identity: The run of now.
        total_steps: The steps of the whole run.
        even_if_ended: Whether a run that has ended must be resumable, too.

    Raises:
        NotResumable: The run has another identity or format, is running, or cannot be read.
    """
    description: dict[str, Any] = {"format": FORMAT}
    try:
        description = store.read_description()
        if description["format"] is None:
            return None
        if description["ended"] >= total_steps and not even_if_ended:
            return None
        _lock(store, description, identity)
    except NotResumable:
        raise
    except Exception as problem:  # another program's folder, or one that is being removed
        raise NotResumable(
            f"cannot be read ({reason(problem)})",
            "repair or remove it",
            is_other_format=description["format"] != FORMAT,
        ) from None
    # Read again: another process may have ended the run before this one had the lock.
    is_unfinished = store.read_description()["ended"] < total_steps
    state = store.load() if is_unfinished else None
    if state is None:
        store.unlock()
    return state


def _lock(store: CheckpointStore, description: Mapping[str, Any], identity: RunIdentity) -> None:
    """Lock a run for this process, if it can be resumed with this identity.

    Raises:
        NotResumable: The run has another identity or format, or is running.
    """
    number = description["format"]
    if number != FORMAT:
        their_format = "an unknown format (no run.json)" if number == FORMAT_UNKNOWN else f"format {number}"
        raise NotResumable(
            f"has checkpoints of {their_format}, this version reads format {FORMAT}",
            "finish it with the version that started it, or move its folder away",
            is_other_format=True,
        )
    differing = differences_from(description["identity"], identity)
    if differing:
        shown = ", ".join(describe_difference(each, identity) for each in differing[:MAX_SHOWN])
        more = ", ..." if len(differing) > MAX_SHOWN else ""
        raise NotResumable(f"differs in {shown}{more}", "use the same options")
    if not store.lock():
        raise NotResumable("is running in another process", "wait for it")


def _newest_first(top: Path) -> list[Path]:
    """Return the entries of a folder, newest first; none if it cannot be read."""
    entries = []
    with suppress(OSError):
        for path in top.iterdir():
            with suppress(OSError):  # gone by now
                entries.append((path.lstat().st_mtime, path))
    return [path for _, path in sorted(entries, reverse=True)]
