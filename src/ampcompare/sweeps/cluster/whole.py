"""A sweep that is an array: what it is, where it lies, and what of it is done."""

from __future__ import annotations

import dataclasses
import secrets
from collections.abc import Sequence

from rich.console import Console

from ampcompare.errors import UserError, one_line
from ampcompare.program.console import print_line
from ampcompare.report.words import plural
from ampcompare.sweeps import definition
from ampcompare.sweeps.answer import report
from ampcompare.sweeps.cluster.array import PlannedRun, planned_run
from ampcompare.sweeps.cluster.book import Book
from ampcompare.sweeps.cluster.task import RunTask
from ampcompare.sweeps.holes.note import NAME, folder_of, note
from ampcompare.sweeps.prepare import Prepared
from ampcompare.sweeps.process import of_others
from ampcompare.sweeps.run import EXIT_FAILED_RUNS, make_output
from ampcompare.sweeps.worker import Launch


class WholeArray:
    """A sweep, its folder and what of it is done."""

    def __init__(self, path: str, ready: Prepared, words: Sequence[str], console: Console):
        self.path, self.console, self.words = path, console, words
        self.options: list[str] = []  # of the command, that say which sweep it is
        self.sweep, self.same, self.here, self.told = ready.sweep, ready.same, ready.here, ready.told
        self.others = {} if self.here else of_others()
        output = ready.output
        place = str(output.absolute())
        if "%" in place or "\\" in place or not place.isprintable():
            expected = "expected a printable path without % and \\, which mean something to sbatch"
            raise UserError(f"output_dir={str(output)!r}: {expected}")
        if (output / "sweep.db").exists():
            what = "a sweep was run or filled there without --cluster, and its database goes on with it"
            todo = "go on with --fill" if Book(output).has_begun() else "leave --cluster out"
            raise UserError(f"output_dir={str(output)!r}: {what}; name another folder, or {todo}")
        self.folder = make_output(output)
        self.book = Book(self.folder)
        # With --storage its database is elsewhere; what it is to have is noted beside its records.
        noted = folder_of(self.folder, self.sweep.name) / NAME
        if self.book.sweep() is None and noted.exists():
            what = f"sweep {self.sweep.name} was run there without --cluster"
            raise UserError(
                f"output_dir={str(output)!r}: {what}; name another folder, or leave --cluster out"
            )
        self.own, self.on_cpu = ready.words, ready.on_cpu
        self.book.make()

    def agree(self) -> None:
        """Go on with what began in this folder. Raises UserError if that was something else."""
        ours = definition.definition(self.sweep, self.own)
        kept = self.book.sweep()
        if kept is None or not self.book.has_begun():  # a submission that was refused binds nobody
            kept = {"definition": ours, "added": [], "salt": secrets.token_hex(8)}
        try:
            self.sweep, more = definition.agreed(self.sweep, kept["definition"], ours)
        except definition.Changed as changed:
            why = f"a sweep named {self.sweep.name!r} is in {self.folder} already and differs in {changed}"
            raise UserError(f"{self.path}: {why}; set output_dir=... for a new one") from None
        known = [seed for group in kept["added"] for seed in group]
        if new := [seed for seed in more if seed not in known]:
            kept["added"].append(new)
        self.book.keep_sweep(kept)
        self.began, self.salt = kept["definition"], kept["salt"]
        self.sweep = dataclasses.replace(self.sweep, added=tuple(map(tuple, kept["added"])))
        note(self.sweep, self.own, self.folder)
        for line in self.same.said(self.sweep):
            self.say(line)

    def say(self, line: str) -> None:
        print_line(self.console, one_line(line))

    def runs(self) -> list[PlannedRun]:
        total = self.sweep.total() or 0
        of_sweep = (self.sweep, self.began, self.told)
        return [planned_run(*of_sweep, index, self.salt) for index in range(total)]

    def task(self, run: PlannedRun, patience: float) -> RunTask:
        sweep = self.sweep
        behind = (*self.own, f"output_dir={self.folder}") if self.here else self.own
        return RunTask(Launch.of(sweep, self.folder, behind, self.others, self.here), run, patience)

    def headline(self, done: int, failed: int) -> str:
        parts = [f"{self.sweep.name}: {self.sweep.method}, {plural(self.sweep.total() or 0, 'run')}"]
        parts += [f"{done} of them done before"] if done else []
        parts += [f"{failed} failed"] if failed else []
        return ", ".join(parts)

    def finish(self, failed: Sequence[PlannedRun]) -> int:
        """All runs have ended: those that failed, and the report, here."""
        if failed:
            total = self.sweep.total()
            ids = ", ".join(run.run_id for run in failed[:5]) + (", ..." if len(failed) > 5 else "")
            self.say(
                f"{len(failed)} of {total} runs failed ({ids}); their output is in {self.folder / 'logs'}"
            )
        status = report(self.console, self.sweep, self.folder)
        return EXIT_FAILED_RUNS if failed else status
