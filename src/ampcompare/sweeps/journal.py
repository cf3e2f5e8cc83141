"""The journal of a sweep: what the sweep is, and everything that happened to its runs.

Two files in the sweep's output folder:

- `sweep.json`: the definition with which the sweep began, and the command. A sweep file that says something
  else is another sweep (sweep_identity.py).
- `sweep.jsonl`: one event a line, only ever appended to. Each line is on the disk before the driver takes its
  next step, so a killed driver loses nothing: the next one reads the lines and knows every run.

One driver at a time writes them. `sweep.lock` keeps a second driver out.
"""

import json
import os
import secrets
import socket
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from io import FileIO
from itertools import chain
from pathlib import Path
from typing import Any

import psutil
from filelock import FileLock, Timeout

from ampcompare.errors import EXIT_UNSUITABLE, UserError, reason
from ampcompare.runs.run_state import RunState
from ampcompare.runtime.atomic_files import replacing

FORMAT = 2
DEFINITION_FILE, EVENTS_FILE, LOCK_FILE = "sweep.json", "sweep.jsonl", "sweep.lock"
RUN_ID_CHARS = 8
LOCK_SECONDS = 1.0  # `--status` has the lock for a moment where Linux does not tell
STARTABLE_STATES = (RunState.QUEUED, RunState.PREEMPTED)
NEW_FOLDER_HINT = "set another output_dir=... for a new sweep"


@dataclass(frozen=True)
class SweepRun:
    """A run of a sweep: its point, and how it stands.

    Attributes:
        index: Number of the point in the sweep.
        run_id: W&B's id of the run. A point that is run again from its beginning gets a new id.
        parameters: Values of the varied options, nested as in W&B's sweep files.
        plan: What the sweep's plan says of this run beside the file: `place`, `block`, `arm`, `looks`.
        drawn: What the sampler drew for it (`method: bayes`), for the sampler's next proposals.
        state: How it stands.
        starts: How often it was started.
        signal_ends: How often a signal ended it that this sweep did not send.
        refusals: How often it ended with EXIT_UNSUITABLE, which our own training does before it trains.
        value: Last value of the sweep's metric.
        exit_code: Of its last end; a signal's number is negative.
        bands: Metric at each band of hyperband that the run has reached.
        process: Where it was last started: host, pid and start time, or the job's id.
        is_external: Whether an agent of W&B's server started it.
        is_stopped_early: Whether hyperband has stopped it.
        queued_at: Since when it waits for its start, or waited for the last one (seconds since 1970).
    """

    index: int
    run_id: str = ""
    parameters: Mapping[str, Any] = field(default_factory=dict)
    plan: Mapping[str, Any] = field(default_factory=dict)
    drawn: Mapping[str, Any] = field(default_factory=dict)
    state: RunState = RunState.QUEUED
    starts: int = 0
    signal_ends: int = 0
    refusals: int = 0
    value: float | None = None
    exit_code: int | None = None
    bands: Mapping[int, float] = field(default_factory=dict)
    process: Mapping[str, Any] = field(default_factory=dict)
    is_external: bool = False
    is_stopped_early: bool = False
    queued_at: float = 0.0

    @property
    def is_startable(self) -> bool:
        """Return whether it waits for a start, its first or the next."""
        return self.state in STARTABLE_STATES and not self.is_external

    @property
    def last_start(self) -> int:
        """Number of the start that is under way, or that comes next; the first one is 1.

        A driver may have been killed before it wrote down that it started a run.
        """
        return self.starts if self.state is RunState.RUNNING else self.starts + 1


@dataclass(frozen=True)
class SeedGroup:
    """Seeds that were added to a sweep, and the look that asked for them.

    Attributes:
        seeds: The added seeds. None: the look ended the sweep.
        look: Number of seeds of the interim look; None where the sweep file named the seeds.
        messages: The messages of the look.
    """

    seeds: tuple[Any, ...]
    look: int | None = None
    messages: tuple[str, ...] = ()


class SweepState:
    """A sweep as the events of its journal tell it.

    Attributes:
        name: Name of the sweep.
        definition: What the sweep began as.
        command: The command with which it began, as `SweepCommand.data` returns it.
        runs: The newest run of each point that was begun, by index.
        seed_groups: Groups of seeds that were added since the sweep began.
        code: SHA-256 of each of the user's files by its path, with which the newest runs were made.
        submissions: For each job array, by the mark in its jobs' names: the runs of each job, as they were
            when it was submitted.
        driver: Host and pid of the last driver.
    """

    def __init__(self, name: str, definition: Mapping[str, Any], command: Mapping[str, Any]) -> None:
        self.name, self.definition, self.command = name, definition, command
        self.runs: dict[int, SweepRun] = {}
        self._indices: dict[RunState, set[int]] = {state: set() for state in RunState}
        self.seed_groups: list[SeedGroup] = []
        self.code: Mapping[str, str] = {}
        self.submissions: dict[str, list[list[SweepRun]]] = {}
        self.driver: Mapping[str, Any] = {}

    def apply(self, event: Mapping[str, Any]) -> None:
        """Take one event of the journal into account."""
        index = event.get("index")
        match event["event"]:
            case "driver":
                self.driver = event
            case "seeds":
                group = SeedGroup(tuple(event["seeds"]), event["look"], tuple(event["messages"]))
                self.seed_groups.append(group)
            case "code":
                self.code = event["hashes"]
            case "submission":
                self._submit(event["mark"], event["indices"])
            case "proposed":
                known = {key: event[key] for key in ("index", "run_id", "parameters", "plan", "drawn")}
                self._keep(SweepRun(**known, queued_at=_seconds(event["time"])))
            case "external":
                known = {key: event[key] for key in ("index", "run_id", "parameters", "plan", "value")}
                state = RunState(event["state"])
                self._keep(SweepRun(**known, state=state, starts=1, is_external=True))
            case _ if index in self.runs:
                self._keep(_after_event(self.runs[index], event))

    def _keep(self, run: SweepRun) -> None:
        """Take a run as it stands now."""
        if before := self.runs.get(run.index):
            self._indices[before.state].discard(run.index)
        self.runs[run.index] = run
        self._indices[run.state].add(run.index)

    def _submit(self, mark: str, jobs: Sequence[int | Sequence[int]] | None) -> None:
        """Take a submission into account.

        Args:
            jobs: For each job, the index of its run, or the list of several; None: it was refused.
        """
        if jobs is None:
            del self.submissions[mark]
            return
        indices = [[job] if isinstance(job, int) else job for job in jobs]
        self.submissions[mark] = [[self.runs[index] for index in job] for job in indices]

    @property
    def submitted(self) -> set[int]:
        """The runs that were ever submitted as a job, or as a part of one."""
        return {run.index for jobs in self.submissions.values() for runs in jobs for run in runs}

    @property
    def has_begun(self) -> bool:
        """Return whether a run was started or submitted; until then the definition may change."""
        return bool(self.submissions) or any(run.starts for run in self.runs.values())

    @property
    def has_only_failed(self) -> bool:
        """Return whether nothing that was started can be kept, so that the sweep may begin as another one.

        Every run has failed, or was refused by its machine before it trained, or waits behind such a run.
        """
        submitted = self.submitted

        def is_lost(run: SweepRun) -> bool:
            is_untrained = run.starts == run.refusals and run.index not in submitted
            return run.state is RunState.FAILED or (is_untrained and run.state is not RunState.RUNNING)

        return any(run.starts for run in self.runs.values()) and all(map(is_lost, self.runs.values()))

    @property
    def driver_name(self) -> str:
        """Host and pid of the last driver, for a message."""
        return f"{self.driver.get('host')}, pid {self.driver.get('pid')}"

    @property
    def added_seeds(self) -> list[tuple[Any, ...]]:
        """The groups of seeds beyond those with which the sweep began."""
        return [group.seeds for group in self.seed_groups if group.seeds]

    def with_state(self, *states: RunState) -> list[SweepRun]:
        """Return the runs in one of these states, ordered by index."""
        return [self.runs[index] for index in sorted(chain(*(self._indices[state] for state in states)))]

    @property
    def own_runs(self) -> list[SweepRun]:
        """The runs that this sweep has begun, not an agent of W&B's server, ordered by index."""
        return [run for _, run in sorted(self.runs.items()) if not run.is_external]

    @property
    def own_running(self) -> list[SweepRun]:
        """The runs that this sweep has started and that are not known to have ended, ordered by index."""
        return [run for run in self.with_state(RunState.RUNNING) if not run.is_external]

    @property
    def startable(self) -> list[SweepRun]:
        """The runs that wait for a start, their first or the next, ordered by index."""
        return [run for run in self.with_state(*STARTABLE_STATES) if run.is_startable]

    def count(self, *states: RunState) -> int:
        """Return the number of runs in one of these states."""
        return sum(len(self._indices[state]) for state in states)


def _after_event(run: SweepRun, event: Mapping[str, Any]) -> SweepRun:
    """Return the run as it stands after it was started, has reached a band of hyperband, or has ended."""
    match event["event"]:
        case "started":
            process, starts = event["process"], run.starts + 1
            return replace(run, state=RunState.RUNNING, starts=starts, process=process, exit_code=None)
        case "band":
            bands = {**run.bands, event["band"]: event["value"]}
            return replace(run, bands=bands, is_stopped_early=event["stopped"])
        case "ended":
            return replace(
                run,
                state=RunState(event["state"]),
                value=event["value"],
                exit_code=event["exit_code"],
                signal_ends=run.signal_ends + event["by_signal"],
                refusals=run.refusals + (event["exit_code"] == EXIT_UNSUITABLE),
                queued_at=_seconds(event["time"]),
            )
    return run


class Journal:
    """The journal of one sweep, opened for its only driver.

    Attributes:
        state: The sweep as its journal tells it.
    """

    def __init__(
        self,
        folder: Path,
        name: str,
        definition: Mapping[str, Any],
        command: Mapping[str, Any] | None = None,
    ) -> None:
        """Lock the folder, and read or begin the journal in it.

        A journal without any run that was started is begun again. So is one of which every run has failed,
        if the definition has changed.

        Args:
            folder: The sweep's output folder.
            name: Name of the sweep.
            definition: What a new sweep is; an existing journal keeps its own.
            command: The command that begins a new sweep.

        Raises:
            UserError: If another driver or a sweep of another name has the folder, or the journal cannot be
                read.
        """
        self.folder = folder
        self._lock = FileLock(folder / LOCK_FILE)
        try:
            self._lock.acquire(timeout=LOCK_SECONDS)
        except Timeout:
            state = read_journal(folder)
            where = f" ({state.driver_name})" if state and state.driver else ""
            raise UserError(
                f"{folder}: this sweep is already running in this folder{where}; "
                f"wait for it, stop it, or {NEW_FOLDER_HINT}"
            ) from None
        except (OSError, NotImplementedError) as problem:  # the latter: a drive without locks
            raise UserError(
                f"{folder / LOCK_FILE}: cannot be locked ({reason(problem)}); {NEW_FOLDER_HINT}"
            ) from None
        self._file: FileIO | None = None
        try:
            state = read_journal(folder)
            # A run that was proposed may have been started by a driver that was killed in that moment.
            is_same = state is not None and (state.name, state.definition) == (name, definition)
            is_corrected = state is not None and state.has_only_failed and not is_same and state.name == name
            if is_corrected:
                self._put_logs_away()
            if state is None or is_corrected or not (state.has_begun or (is_same and state.runs)):
                state = self._begin(name, definition, command or {})
            if state.name != name:
                raise UserError(
                    f"{folder}: this folder belongs to the sweep {state.name!r}, not to {name!r}; "
                    f"{NEW_FOLDER_HINT}"
                )
            self.state = state
            self._file = _open_after_last_whole_line(folder / EVENTS_FILE)
        except OSError as problem:
            self.close()
            raise UserError(
                f"{folder}: the journal of the sweep cannot be written ({reason(problem)}); {NEW_FOLDER_HINT}"
            ) from None
        except BaseException:
            self.close()
            raise

    def _put_logs_away(self) -> None:
        """Move the logs of failed runs, which a new journal does not have, into the folder `logs/failed`."""
        failed = self.folder / "logs" / "failed"
        failed.mkdir(exist_ok=True)
        for file in self._logs():
            file.rename(failed / file.name)

    def _logs(self) -> list[Path]:
        return [*(self.folder / "logs").glob(f"{'[0-9a-f]' * RUN_ID_CHARS}.log")]

    def _begin(self, name: str, definition: Mapping[str, Any], command: Mapping[str, Any]) -> SweepState:
        if logs := self._logs():
            raise UserError(
                f"{self.folder}: the folder has the log {logs[0].name} of a run not in {EVENTS_FILE}; "
                f"{NEW_FOLDER_HINT}"
            )
        content = {"format": FORMAT, "name": name, "command": command, "sweep": definition}
        (self.folder / EVENTS_FILE).unlink(missing_ok=True)
        with replacing(self.folder / DEFINITION_FILE) as file:
            file.write(json.dumps(content, indent=1).encode())
        return SweepState(name, definition, command)

    def append(self, event: str, **fields: Any) -> None:
        """Write an event, have it on the disk, and apply it to the state.

        Raises:
            UserError: If it cannot be written.
        """
        content = {"event": event, "time": datetime.now(UTC).isoformat(timespec="milliseconds"), **fields}
        assert self._file
        try:
            left = json.dumps(content).encode() + b"\n"
            while left:  # a disk that is almost full takes a part
                left = left[self._file.write(left) :]
            os.fsync(self._file.fileno())
        except OSError as problem:
            path = self.folder / EVENTS_FILE
            raise UserError(
                f"{path}: cannot be written ({reason(problem)}); "
                "fix this, then run the same command to continue"
            ) from None
        self.state.apply(content)

    def begin_driver(self) -> None:
        """Note which process writes from here on."""
        me = psutil.Process()
        self.append("driver", host=socket.gethostname(), pid=me.pid, process_started=me.create_time())

    def propose(self, run: SweepRun) -> SweepRun:
        """Write down a new run of a point, under a new id, and return it."""
        run_id = secrets.token_hex(RUN_ID_CHARS // 2)
        fields = {"parameters": run.parameters, "plan": run.plan, "drawn": run.drawn}
        self.append("proposed", index=run.index, run_id=run_id, **fields)
        return self.state.runs[run.index]

    def start(self, run: SweepRun, process: Mapping[str, Any]) -> None:
        """Write down that a run was started, and where."""
        self.append("started", index=run.index, run_id=run.run_id, process=dict(process))

    def reach_band(self, run: SweepRun, band: int, value: float, *, stopped: bool) -> None:
        """Write down the metric of a run at a band of hyperband, and whether it was stopped there."""
        self.append("band", index=run.index, band=band, value=value, stopped=stopped)

    def end(
        self, run: SweepRun, state: RunState, value: float | None, exit_code: int | None, *, by_signal: bool
    ) -> None:
        """Write down how a run ended."""
        known = {"index": run.index, "run_id": run.run_id}
        self.append("ended", **known, state=state, value=value, exit_code=exit_code, by_signal=by_signal)

    def add_external(self, runs: Iterable[SweepRun]) -> None:
        """Write down runs that W&B's agents have started, at points that this sweep has not begun."""
        for run in runs:
            fields = {"parameters": run.parameters, "plan": run.plan, "value": run.value}
            self.append("external", index=run.index, run_id=run.run_id, state=run.state, **fields)

    def add_seeds(self, group: SeedGroup) -> None:
        """Write down that seeds were added to the sweep, or that a look asked for none."""
        self.append("seeds", seeds=[*group.seeds], look=group.look, messages=[*group.messages])

    def close(self) -> None:
        """Close the file and let another driver in."""
        if self._file:
            self._file.close()
        self._lock.release()


def read_journal(folder: Path) -> SweepState | None:
    """Read the journal in a folder, also while a driver writes it.

    Returns:
        The sweep's state; None where no sweep has begun in the folder.

    Raises:
        UserError: If the journal is damaged or of another version.
    """
    path, events = folder / DEFINITION_FILE, folder / EVENTS_FILE
    try:
        if not path.exists():
            if events.exists() and events.stat().st_size:
                raise UserError(
                    f"{events}: the file {DEFINITION_FILE} next to it is missing; {NEW_FOLDER_HINT}"
                )
            return None
        content = json.loads(path.read_bytes())
        if content["format"] != FORMAT:
            version = "version 0.4 or an earlier one" if content["format"] == 1 else "a later version"
            raise UserError(
                f"{path}: {version} of AMP Compare began this sweep; finish it with that version, or "
                f"{NEW_FOLDER_HINT}"
            )
        state = SweepState(content["name"], dict(content["sweep"]), content["command"])
        path = events
        lines = path.read_bytes().split(b"\n") if path.exists() else [b""]
        for line in lines[:-1]:  # behind the last line break is nothing, or what a killed driver was writing
            state.apply(json.loads(line))
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as problem:
        raise UserError(
            f"{path}: not the journal of a sweep ({reason(problem)}); {NEW_FOLDER_HINT}"
        ) from None
    return state


def _open_after_last_whole_line(path: Path) -> FileIO:
    """Open a file to append to, without what a killed driver had written of its last line."""
    file = path.open("ab+", buffering=0)  # a buffer would be written once more when the file is closed
    file.seek(0)
    content = file.read()
    file.truncate(content.rfind(b"\n") + 1)
    return file


def _seconds(time: str) -> float:
    return datetime.fromisoformat(time).timestamp()
