"""A process that trains one run or a series of runs, and the facts about the ends of its runs.

Every executor starts runs through `RunLauncher.start`, which returns a `SeriesProcess`: the driver on this
machine, and on a cluster the job of Slurm or the task of Ray. Whoever has it polls it. Each run of a series
is a run of its own. It leaves its own facts (run_end.py), and its guard notes in them that it was asked to
end. The training itself notes which run it has begun and finished (`ampcompare.config.run_series`).
"""

import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from ampcompare.config.run_series import read_progress
from ampcompare.sweeps.journal import SweepRun
from ampcompare.sweeps.process_guard import ProcessGuard, write_end
from ampcompare.sweeps.run_end import RunEnd, end_file, read_end
from ampcompare.sweeps.run_process import POLL_SECONDS, RunProcess

# The ids of all runs of a process that trains several: its environment has W&B's variable of the first one.
SERIES_VARIABLE = "AMPCOMPARE_SERIES"


class SeriesProcess:
    """A process and its runs.

    Args:
        process: The process. The guard watches it for the first run.
        runs: The runs in their order. The first one begins with the process.
        folder: Output folder of the sweep.
        guard: Ends the process if this one dies.
        file: The file that lists the runs (`ampcompare.config.run_series`); None: the process trains one run.

    Attributes:
        runs: As above.
        ends: The facts about the runs that have ended, by the index of the run.
    """

    def __init__(
        self,
        process: RunProcess,
        runs: Sequence[SweepRun],
        folder: Path,
        guard: ProcessGuard,
        file: Path | None = None,
    ) -> None:
        self.runs = runs
        self.ends: dict[int, RunEnd] = {}
        self._process, self._folder, self._guard, self._file = process, folder, guard, file
        self._begun = 1  # how many runs have begun

    @property
    def pid(self) -> int:
        """The process id, which is also the id of its process group."""
        return self._process.pid

    @property
    def current(self) -> SweepRun | None:
        """The run that is under way; None between two runs and at the end."""
        return self.runs[self._begun - 1] if len(self.ends) < self._begun else None

    @property
    def waiting(self) -> Sequence[SweepRun]:
        """The runs that have not begun, and will not if the process has ended."""
        return self.runs[self._begun :]

    def poll(self) -> RunEnd | None:
        """Note which runs have begun or ended since the last call.

        Returns:
            The facts about the end of the process; None while something is running.
        """
        # In this order: whatever an ended process has noted is there to be read.
        end = self._process.poll()
        if self._file is not None:
            self._follow(*read_progress(self._file))
        if end is not None and (run := self.current):
            self._note_end(run, end)
        return end

    def stop(self, number: int, patience: float, asked_by: str) -> None:
        """Ask the process to end, as `RunProcess.stop`. Runs that wait do not begin."""
        self._process.stop(number, patience, asked_by)

    def kill(self) -> None:
        """Kill the process and all that it has started at once."""
        self._process.kill()

    def _follow(self, begun: Sequence[int], finished: Sequence[int]) -> None:
        """Take into account what the process has noted."""
        before = self.current
        for run in self.runs[len(self.ends) : len(finished)]:
            self._note_end(run, RunEnd(0))
        self._begun = max(self._begun, len(begun))
        if self.current is not before:
            facts = end_file_of(self._folder, self.current) if self.current else None
            self._guard.watch(self.pid, facts)

    def _note_end(self, run: SweepRun, end: RunEnd) -> None:
        self.ends[run.index] = end
        write_end(end_file_of(self._folder, run), end.facts())


def train_in_series(
    start: Callable[[Sequence[SweepRun]], SeriesProcess | None],
    runs: Sequence[SweepRun],
    attend: Callable[[SeriesProcess], None],
    is_stopping: Callable[[], bool],
) -> dict[int, RunEnd]:
    """Train runs one after the other in a job or a task, with a new process behind each that did not finish.

    Args:
        start: Starts the process of these runs; None where it cannot be started.
        attend: Passes stop requests on to the process. It is called repeatedly while the process runs.
        is_stopping: Returns whether no further run may begin.

    Returns:
        The facts about the runs that have ended, by the index of the run. The others have not begun.
    """
    ends: dict[int, RunEnd] = {}
    left = runs
    while left and not is_stopping():
        process = start(left)
        if process is None:
            ends[left[0].index] = RunEnd(is_started=False)
            left = left[1:]
            continue
        while process.poll() is None:
            attend(process)
            time.sleep(POLL_SECONDS)
        ends |= process.ends
        left = process.waiting
    return ends


def end_file_of(folder: Path, run: SweepRun) -> Path:
    """Return the file with the facts about the end of a run's last start, or of the one that comes next."""
    return end_file(folder, run.run_id, run.last_start)


def runs_left(runs: Iterable[SweepRun], folder: Path) -> list[SweepRun]:
    """Return the runs of a job or task that have not ended, by the facts that it leaves.

    The first of them is under way, or comes next: a job trains its runs in their order. A run that was asked
    to end is left, because it goes on when its job is queued again.
    """
    ends = [(run, read_end(end_file_of(folder, run))) for run in runs]
    return [run for run, end in ends if end is None or not end.is_seen or end.asked_at is not None]
