"""An executor without processes: one run ends at each question for what is alive, as the test specifies.

A process trains its runs one after the other. It ends with the first run that does not finish.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from rich.console import Console

from ampcompare.sweeps.decisions import Look, seeds_for_first_look
from ampcompare.sweeps.driver import SweepDriver, recover
from ampcompare.sweeps.journal import SweepRun
from ampcompare.sweeps.pipeline import open_journal
from ampcompare.sweeps.prepare import SweepOptions, prepare_sweep
from ampcompare.sweeps.process_guard import write_end
from ampcompare.sweeps.progress import SweepProgress
from ampcompare.sweeps.run_end import MAX_SIGNAL_ENDS, RunEnd, end_file
from ampcompare.sweeps.run_records import RunRecords
from ampcompare.sweeps.stop_request import SweepStopRequest
from ampcompare.sweeps.sweep import Sweep

Ending = Callable[[SweepRun], RunEnd]


def finishes(run: SweepRun) -> RunEnd:
    """Let every run finish."""
    return RunEnd(0)


class ScriptedExecutor:
    """Notes the submitted runs, and ends them by a function.

    Args:
        ending: Returns the facts about the end of a run.
        slots: Number of processes at a time.
        process: Further facts about where a run was started.

    Attributes:
        folder: Where the facts are written; `drive` sets it.
        submitted: All runs, in the order of their submission.
        groups: The indices of the runs of each process.
    """

    poll_seconds = 0.0
    max_signal_ends = MAX_SIGNAL_ENDS

    def __init__(self, ending: Ending = finishes, slots: int = 1, **process: object) -> None:
        self.ending, self.slots = ending, slots
        self.process = {"host": "here", "pid": 1, **process}
        self.folder = Path()
        self.submitted: list[SweepRun] = []
        self.groups: list[tuple[int, ...]] = []
        self._processes: list[list[SweepRun]] = []

    @property
    def assigned(self) -> Sequence[Sequence[int]]:
        return [[run.index for run in runs[1:]] for runs in self._processes]

    def submit(self, groups: Sequence[Sequence[SweepRun]]) -> list[dict[str, object]]:
        for runs in groups:
            self.submitted += runs
            assert len(self.submitted) < 1_000, "the sweep never ends"
            self.groups.append(tuple(run.index for run in runs))
            self._processes.append([*runs])
        return [dict(self.process) for _ in groups]

    def alive(self) -> dict[int, dict[str, object]]:
        if self._processes:
            run, *left = self._processes.pop(0)
            end = self.ending(run)
            write_end(end_file(self.folder, run.run_id, run.last_start), end.facts())
            if left and end.exit_code == 0:
                self._processes.append(left)
        return {runs[0].index: {} for runs in self._processes}

    def cancel(self, runs: Sequence[SweepRun], *, at_once: bool = False) -> None:
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
    describe_first_run: Callable[..., list[str]] | None = None,
) -> list[SweepRun]:
    """Drive a sweep in a folder until nothing is left to do; return its runs."""
    folder.mkdir(exist_ok=True)
    executor.folder = folder
    prepared = prepare_sweep(sweep, words, options or SweepOptions())
    console = Console(quiet=True)
    with open_journal(prepared, folder) as (journal, prepared):
        records = RunRecords(folder, sweep.metric.name if sweep.metric else None)
        recover(prepared, journal, executor, records)
        if looks:
            prepared = replace(prepared, looks=tuple(looks))
            if group := seeds_for_first_look(prepared.sweep_now(journal.state), looks):
                journal.add_seeds(group)
        progress = SweepProgress(console, prepared.sweep, journal.state, folder, executor.slots)
        stop = SweepStopRequest()
        driver = SweepDriver(
            prepared,
            journal,
            executor,
            records,
            progress,
            stop,
            lambda sweep, folder, runs: look(sweep),
            describe_first_run,
        )
        see(driver)
        driver.run()
        return [run for _, run in sorted(journal.state.runs.items())]
