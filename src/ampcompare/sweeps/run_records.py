"""What runs leave in the output folder of a sweep: W&B records, the facts about their ends, and logs."""

import time
from collections.abc import Iterable, Iterator
from pathlib import Path

from ampcompare.runs.run_record import RunRecord, merge_parts
from ampcompare.runs.run_state import RunState
from ampcompare.runs.wandb_file import read_wandb_file
from ampcompare.sweeps.journal import SweepRun
from ampcompare.sweeps.run_end import RecordEnd, RunEnd, end_file_of, read_end
from ampcompare.wandb_client.record_folders import RecordIndex

MAX_CORE_FRACTION = 0.01  # of one core's time that may go into following the metrics of all runs
MAX_READING_SECONDS = 0.02  # at a time: then the driver looks after its runs again
READ_SECONDS = 1.0  # between two reads of one run's record
LAST_BYTES = 16_384  # of a log, which are read
MAX_LINE_CHARS = 1_000
WANDB_LINES = "wandb:"  # how lines of W&B's client begin
RECORD_LINE = "record: "  # how a run's last lines begin
RECORD_LINES = 5  # how many of them there are at most


class RunRecords:
    """What the runs have left: the facts under `folder/ends/` and the records under `folder/wandb/`.

    Args:
        folder: Output folder of the sweep.
        metric: Name of the metric; None where only the ends of records are of interest.
    """

    def __init__(self, folder: Path, metric: str | None = None) -> None:
        self.metric = metric
        self._folder = folder
        self._index = RecordIndex(folder)
        self._read: dict[str, tuple[int, list[float]]] = {}  # size of the record and its values, by run
        self._next_read: dict[str, float] = {}
        self._may_read_at = 0.0  # by time.monotonic

    def refresh(self) -> None:
        """Let the next question list the folder again."""
        self._index.refresh()

    def files(self, run_id: str) -> list[Path]:
        """Return a run's record files, oldest first: one for each start of the run, online or offline."""
        return self._index.files(run_id)

    def end(self, run: SweepRun) -> RunEnd | None:
        """Return the facts about the end of the run's last start; None if there are none."""
        return read_end(end_file_of(self._folder, run))

    def record(self, run: SweepRun) -> RecordEnd:
        """Return what the newest record of a run tells about its end."""
        parts = self._parts(reversed(self.files(run.run_id)), run.run_id)
        for file, record in parts:
            return RecordEnd(record.exit_code, file.stat().st_mtime, record.state is RunState.PREEMPTED)
        return RecordEnd()

    @staticmethod
    def _parts(files: Iterable[Path], run_id: str) -> Iterator[tuple[Path, RunRecord]]:
        """Yield the files that are of the run by their content, too, and not by their names alone."""
        for file in files:
            record = read_wandb_file(file)
            if record.id == run_id:
                yield file, record

    def values(self, run_id: str) -> list[float]:
        """Return every value of the metric that a run has logged so far, NaN included, in order."""
        if self.metric is None:
            return []
        files = self.files(run_id)
        size = sum(file.stat().st_size for file in files)
        known_size, values = self._read.get(run_id, (0, []))
        parts = [record for _, record in self._parts(files, run_id)] if size != known_size else []
        if parts:
            run = merge_parts(parts)
            values = run.logged_numbers(self.metric)[1].tolist()
            if not values and (summary := run.summary_number(self.metric)) is not None:
                values = [summary]  # a metric of the summary alone, such as best/eval_accuracy
            self._read[run_id] = size, values
        return values

    def forget(self, run_id: str) -> None:
        """Drop what is kept about a run that has ended."""
        self._read.pop(run_id, None)
        self._next_read.pop(run_id, None)

    def follow(self, run_ids: Iterable[str]) -> Iterator[tuple[str, list[float]]]:
        """Yield the values of running runs, each at most once in READ_SECONDS.

        All reading together takes at most MAX_CORE_FRACTION of a core. With many runs each one's turn comes
        later.
        """
        began = time.monotonic()
        if began < self._may_read_at:
            return
        due = [run_id for run_id in run_ids if self._next_read.get(run_id, 0.0) <= began]
        reading = 0.0
        for run_id in sorted(due, key=lambda run_id: self._next_read.get(run_id, 0.0)):
            before = time.monotonic()
            values = self.values(run_id)
            now = time.monotonic()
            reading += now - before
            self._next_read[run_id] = now + READ_SECONDS
            self._may_read_at = now + reading / MAX_CORE_FRACTION
            yield run_id, values
            if reading > MAX_READING_SECONDS:
                return


def last_line(log: Path) -> str:
    """Return the last line that a program printed, or an empty text.

    Lines of W&B's client and a run's lines about its record are skipped: they come after the reason of a
    failure.
    """
    try:
        with log.open("rb") as file:
            file.seek(max(0, log.stat().st_size - LAST_BYTES))
            printed = file.read().decode(errors="replace").splitlines()
    except (OSError, ValueError):
        return ""
    lines = [line.strip() for line in printed if line.strip() and not line.startswith(WANDB_LINES)]
    for index in range(len(lines) - 1, max(-1, len(lines) - 1 - RECORD_LINES), -1):
        if lines[index].startswith(RECORD_LINE):
            lines = lines[:index]
            break
    line = lines[-1].removeprefix("error: ") if lines else ""
    # Cut between two words, so that no option or command loses a part.
    return line if len(line) <= MAX_LINE_CHARS else f"{line[:MAX_LINE_CHARS].rpartition(' ')[0]} ..."
