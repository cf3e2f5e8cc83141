"""An executor without processes: runs end at the next poll, as the test specifies."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from rich.console import Console

from ampcompare.runs.run_state import RunState
from ampcompare.sweeps.driver import SweepDriver
from ampcompare.sweeps.executors import RunEvent
from ampcompare.sweeps.interim_looks import Look, fill_first_look
from ampcompare.sweeps.journal import SweepRun
from ampcompare.sweeps.pipeline import open_journal
from ampcompare.sweeps.prepare import SweepOptions, prepare_sweep
from ampcompare.sweeps.progress import SweepProgress
from ampcompare.sweeps.stop_request import SweepStopRequest
from ampcompare.sweeps.sweep import Sweep

Ending = Callable[[SweepRun], RunEvent]


def finishes(run: SweepRun) -> RunEvent:
    """Let every run finish."""
    return RunEvent(run.index, RunState.FINISHED, 0)


class ScriptedExecutor:
    """Notes the submitted runs, and ends them by a function.

    Args:
        ending: Returns how a run ends.
        slots: Number of runs at a time.
    """

    has_live_records = False

    def __init__(self, ending: Ending = finishes, slots: int = 1) -> None:
        self.ending, self.slots = ending, slots
        self.submitted: list[SweepRun] = []
        self._news: list[RunEvent] = []
        self._ends: list[RunEvent] = []

    def submit(self, runs: Sequence[SweepRun]) -> None:
        for run in runs:
            self.submitted.append(run)
            self._news.append(RunEvent(run.index, RunState.RUNNING, process={"host": "here", "pid": 1}))
            self._ends.append(self.ending(run))

    def poll(self, seconds: float) -> list[RunEvent]:
        if self._news:
            news, self._news = self._news, []
        else:
            news, self._ends = self._ends[:1], self._ends[1:]
        return news

    def cancel(self, run: SweepRun, *, at_once: bool = False) -> None:
        pass

    def close(self) -> None:
        pass


def drive(
    folder: Path,
    sweep: Sweep,
    executor: ScriptedExecutor,
    words: Sequence[str] = (),
    options: SweepOptions | None = None,
    looks: Sequence[int] = (),
    look: Callable[[Sweep], Look] = lambda sweep: Look(True, ()),
    see: Callable[[SweepDriver], object] = lambda driver: None,
) -> list[SweepRun]:
    """Drive a sweep in a folder until nothing is left to do; return its runs."""
    folder.mkdir(exist_ok=True)
    prepared = prepare_sweep(sweep, words, options or SweepOptions())
    console = Console(quiet=True)
    with open_journal(prepared, folder) as (journal, prepared):
        if looks:
            prepared = replace(prepared, looks=tuple(looks))
            now = replace(prepared.sweep, added=tuple(journal.state.added_seeds))
            fill_first_look(now, journal, looks)
        progress = SweepProgress(console, prepared.sweep, journal.state, folder, executor.slots)
        stop = SweepStopRequest()
        driver = SweepDriver(
            prepared, journal, executor, progress, stop, lambda sweep, folder, runs: look(sweep)
        )
        see(driver)
        driver.run()
        return [run for _, run in sorted(journal.state.runs.items())]
