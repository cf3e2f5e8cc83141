"""The options of `ampcompare report`, checked before anything is read."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Argument, Option

from ampcompare.analysis.options import COMMA_SEPARATED, AnalysisOptions, split_names
from ampcompare.errors import UserError

if TYPE_CHECKING:
    from ampcompare.analysis.analysis import Analysis

PICTURES = ("png", "svg")
FORMATS = ("html", "csv", "md", "json", *PICTURES)
ALL = "all"
OPTION_NAMES = {"formats": "--format"}  # by field, where the option has another name


@dataclass(frozen=True)
class ReportOptions:
    """The options of `ampcompare report`: its sources, its analysis, and what it writes.

    Attributes:
        analysis: What is compared. On the command line each of its fields is an option, too.

    Raises:
        UserError: If an option has a bad value, or two options contradict each other.
    """

    sources: Annotated[
        list[str],
        Argument(
            metavar="SOURCE",
            help="Runs to compare: a folder, a log file or wandb:ENTITY/PROJECT. NAME=SOURCE gives an arm "
            "its name.",
        ),
    ]
    out: Annotated[str, Option(metavar="DIR", help="Folder for the report.")] = "report"
    analysis: AnalysisOptions = AnalysisOptions()
    step: Annotated[
        str | None,
        Option(
            metavar="COLUMN",
            help="Step column of tables and JSON lines, if its name is unusual; none for the order of "
            "the rows.",
        ),
    ] = None
    run_by: Annotated[
        str | None,
        Option(
            metavar="COLUMN",
            help="Column of a table with several runs, of which each value is a run and a setting; several "
            "with commas.",
        ),
    ] = None
    starts: Annotated[
        str | None,
        Option(
            metavar="WHICH",
            help="What counts in a table whose steps begin again: last for its last start, joined for a run "
            "that was resumed.",
        ),
    ] = None
    rows: Annotated[
        str | None,
        Option(metavar="KIND", help="runs to read each row of a table as a run, as in a table of results."),
    ] = None
    run_name: Annotated[
        str | None,
        Option(
            metavar="PATTERN",
            help="What the name of a run or of its file means: {arm}, {seed} and other settings, * for any "
            "text. Example: '{arm}_lr_{lr}'.",
        ),
    ] = None
    formats: Annotated[
        str,
        Option(
            "--format",
            metavar="LIST",
            help="Comma-separated formats to write: html, csv, md, json, png, svg.",
        ),
    ] = ALL
    summary: Annotated[
        str | None,
        Option(
            metavar="FILE", help="Append the verdict, the requirements and the table to this Markdown file."
        ),
    ] = None

    def __post_init__(self) -> None:
        unknown = [name for name in self.chosen_formats or ("",) if name not in FORMATS]
        if unknown:
            raise UserError(f"--format {unknown[0]!r}: expected some of {', '.join(FORMATS)}, or {ALL}")

    @classmethod
    def from_command_line(cls, values: Mapping[str, Any]) -> ReportOptions:
        """Return the options from the value of each option of the command line, by field.

        Args:
            values: The values; None for a list that was not given, text for one that commas separate.

        Raises:
            UserError: If an option has a bad value, or two options contradict each other.
        """
        of_analysis: dict[str, Any] = {}
        for field in fields(AnalysisOptions):
            value = values[field.name]
            if value is None:
                value = field.default
            elif field.name in COMMA_SEPARATED:
                value = split_names(value)
            of_analysis[field.name] = value
        others = {name: value for name, value in values.items() if name not in of_analysis}
        return cls(analysis=AnalysisOptions(**of_analysis), **others)

    @property
    def chosen_formats(self) -> tuple[str, ...]:
        """The formats to write."""
        chosen = split_names(self.formats.lower())
        return FORMATS if chosen == (ALL,) else chosen

    def analyse(self) -> Analysis:
        """Read the runs and compare them.

        Raises:
            UserError: If no run can be read, or an option does not fit the runs.
            MissingInput: A UserError whose message has the command with the options that are missing.
        """
        from ampcompare.analysis.analysis import analyse_runs
        from ampcompare.runs import load_runs
        from ampcompare.runs.missing_input import MissingInput

        try:
            runs = load_runs(
                self.sources,
                step=self.step,
                run_by=self.run_by,
                starts=self.starts,
                rows=self.rows,
                run_name=self.run_name,
                where=self.analysis.where,
            )
            command = find_sweep_command(self.sources)
            return analyse_runs(runs, options=self.analysis, sweep_command=command)
        except MissingInput as missing:
            raise missing.as_command(self.command_with(missing.arms, missing.arguments)) from None

    def command_with(self, arms: Sequence[str], arguments: Sequence[str]) -> str:
        """Return this command with further options at its end, in place of its own ones of the same names.

        Args:
            arms: Sources with names, in place of `sources`; empty to keep `sources`.
            arguments: Further options and their values, alternating.
        """
        from ampcompare.runtime.paths import shell_command

        sources = arms or self.sources
        return shell_command(
            "ampcompare", "report", *sources, *self._option_words(arguments[::2]), *arguments
        )

    def _option_words(self, replaced: Sequence[str]) -> Iterator[str]:
        """Yield the words of each option that has another value than its default.

        Args:
            replaced: Options to leave out, unless they may be given several times.
        """
        values = {**vars(self.analysis), **vars(self)}
        for field in (*fields(self.analysis), *fields(self)):
            value = values[field.name]
            if field.name in ("sources", "analysis") or value == field.default:
                continue
            option = OPTION_NAMES.get(field.name, f"--{field.name.replace('_', '-')}")
            is_list = not isinstance(value, str | float | int) and field.name not in COMMA_SEPARATED
            if is_list:
                yield from (word for item in value for word in (option, item))
            elif option in replaced:
                continue
            elif value is True:
                yield option
            else:
                yield from (option, ",".join(value) if field.name in COMMA_SEPARATED else str(value))


def find_sweep_command(sources: Sequence[str]) -> str:
    """Return the command that adds seeds to the sweep in the only source, "" if it is not such a folder."""
    from ampcompare.runtime.paths import shell_command

    if len(sources) != 1:
        return ""
    try:
        words = json.loads(Path(sources[0], "sweep.json").read_text(encoding="utf-8"))["command"]
    except (OSError, ValueError, KeyError, TypeError):
        return ""
    if not isinstance(words, list) or not all(isinstance(word, str) for word in words) or not words:
        return ""
    if "--until-decided" not in words:
        words.append("--until-decided")
    return f"`{shell_command('ampcompare', *words)}`"
