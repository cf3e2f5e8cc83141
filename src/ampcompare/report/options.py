"""The options of `ampcompare report`, checked before anything is read."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from typer import Argument, Option

from ampcompare.errors import UserError

if TYPE_CHECKING:
    from ampcompare.analysis.analysis import Analysis

PICTURES = ("png", "svg")
FORMATS = ("html", "csv", "md", "json", *PICTURES)
ALL = "all"
PUBLICATION_SUFFIXES = (".yaml", ".yml")
OPTION_NAMES = {"formats": "--format"}  # by field, where the option has another name
PASSED_UNCHANGED = (
    *("baseline", "bench", "metric", "best", "seed", "throughput", "time", "memory", "margin", "target"),
    *("reproduce", "within"),
)


@dataclass(frozen=True)
class ReportOptions:
    """The options of `ampcompare report`, one field an option.

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
    baseline: Annotated[
        str | None,
        Option(
            metavar="VALUE",
            help="Backend or arm that the others are compared with. Default: none, which is strict fp32.",
        ),
    ] = None
    metric: Annotated[
        str | None,
        Option(
            metavar="KEY",
            help="Metric to compare, and which direction is better: KEY:max or KEY:min. Add :percent or "
            ":fraction if its values are logged so. Default: the metric of the runs' task.",
        ),
    ] = None
    best: Annotated[
        bool, Option("--best", help="Compare each run's best value of the metric instead of its last.")
    ] = False
    throughput: Annotated[
        str | None,
        Option(metavar="KEY:UNIT", help="Metric with the speed in runs of other programs: KEY:per_second."),
    ] = None
    time: Annotated[
        str | None,
        Option(
            metavar="KEY:UNIT",
            help="Instead of --throughput: metric with the time of a step or an epoch, KEY:seconds or "
            "KEY:ms. Add :cumulative if it counts from the start.",
        ),
    ] = None
    memory: Annotated[
        str | None,
        Option(
            metavar="KEY:UNIT",
            help="Metric with the peak memory in runs of other programs: KEY:MiB, KEY:GiB or KEY:bytes.",
        ),
    ] = None
    where: Annotated[
        list[str] | None,
        Option(
            metavar="[KEY:]COLUMN=VALUE",
            help="Rows that count in logs of other programs, where training and evaluation rows have the "
            "same key: split=val, or time:split=train for one key. May be given several times.",
        ),
    ] = None
    step: Annotated[
        str | None, Option(metavar="COLUMN", help="Step column of CSV files, if its name is unusual.")
    ] = None
    bench: Annotated[
        str | None,
        Option(metavar="FILE", help="Take speed and memory from this file of `ampcompare bench --json`."),
    ] = None
    margin: Annotated[
        float | None,
        Option(
            metavar="X",
            help="Equivalence margin: the largest difference in the metric that still counts as equivalent. "
            "Default: from the plan, or 0.5 points of accuracy.",
        ),
    ] = None
    target: Annotated[
        float | None,
        Option(
            metavar="X",
            help="Value of the metric whose time is compared, such as 0.93. Default: from the plan, or what "
            "the baseline reaches.",
        ),
    ] = None
    group_by: Annotated[
        str | None,
        Option(
            metavar="KEYS",
            help="Comma-separated settings that define the groups, such as backend,batch_size. The first is "
            "compared.",
        ),
    ] = None
    split_by: Annotated[
        str,
        Option(
            metavar="KEYS", help="Comma-separated settings that divide the runs of a named arm into groups."
        ),
    ] = ""
    seed: Annotated[
        str | None, Option(metavar="KEY", help="Setting that pairs runs, if it is not called seed.")
    ] = None
    ignore: Annotated[
        str, Option(metavar="KEYS", help="Comma-separated settings in which pooled runs may differ.")
    ] = ""
    formats: Annotated[
        str,
        Option(
            "--format",
            metavar="LIST",
            help="Comma-separated formats to write: html, csv, md, json, png, svg.",
        ),
    ] = ALL
    reproduce: Annotated[
        str | None,
        Option(
            metavar="NAME",
            help="Also compare the runs with this publication. `ampcompare reproduce` lists them.",
        ),
    ] = None
    within: Annotated[
        float,
        Option(metavar="FRACTION", help="With --reproduce: how far a ratio may be from the published ratio."),
    ] = 0.1
    publish: Annotated[
        str | None,
        Option(
            metavar="FILE", help="Write these runs as a publication, NAME.yaml, that others can reproduce."
        ),
    ] = None
    require: Annotated[
        list[str] | None,
        Option(
            metavar="TERMS",
            help="Requirement that the runs must show, such as 'native: speedup >= 1.5'. May be given "
            "several times.",
        ),
    ] = None
    summary: Annotated[
        str | None,
        Option(
            metavar="FILE", help="Append the verdict, the requirements and the table to this Markdown file."
        ),
    ] = None
    watch: Annotated[
        bool,
        Option(
            "--watch", help="Serve the page on this machine and update it while runs train, until Ctrl-C."
        ),
    ] = False
    port: Annotated[
        int,
        Option(
            metavar="PORT", min=0, max=65535, help="With --watch: port of the page. 0 takes any free port."
        ),
    ] = 0

    words: Sequence[str] = ()  # of the command line, as the user typed them; empty for another caller

    def __post_init__(self) -> None:
        if self.group_by is not None and not split_names(self.group_by):
            raise UserError("--group-by '': expected keys such as backend or backend,batch_size")
        for name in self.chosen_formats or ("",):
            if name not in FORMATS:
                raise UserError(f"--format {name!r}: expected some of {', '.join(FORMATS)}, or {ALL}")
        if not 0 < self.within < 1:
            raise UserError(f"--within {self.within:g}: expected a fraction above 0 and below 1, such as 0.1")
        if self.publish is not None and not self.publish.endswith(PUBLICATION_SUFFIXES):
            raise UserError(
                f"--publish {self.publish!r}: expected the name of a YAML file, such as mine.yaml"
            )
        if self.target is not None and not math.isfinite(self.target):
            raise UserError(f"--target {self.target}: expected a value of the metric, such as 0.93")
        at_end = {"--require": self.require, "--summary": self.summary, "--publish": self.publish}
        for option in (name for name, value in at_end.items() if value and self.watch):
            raise UserError(
                f"{option}: needs all runs, so it cannot be combined with --watch; leave --watch out"
            )
        if self.watch and "html" not in self.chosen_formats:
            raise UserError("--watch: needs the page; add html to --format")
        if self.reproduce is not None:
            from ampcompare.publications.publication import load_publication

            load_publication(self.reproduce)
        if self.require:
            from ampcompare.analysis.gates import parse_gates

            parse_gates(self.require)

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
        from ampcompare.analysis.external.missing_input import MissingInput
        from ampcompare.runs import load_runs

        try:
            analysis = analyse_runs(
                load_runs(self.sources, step=self.step),
                group_by=None if self.group_by is None else split_names(self.group_by),
                split_by=split_names(self.split_by),
                ignore=split_names(self.ignore),
                require=self.require or (),
                where=self.where or (),
                **{name: getattr(self, name) for name in PASSED_UNCHANGED},
            )
            analysis.sweep_command = find_sweep_command(self.sources)
            return analysis
        except MissingInput as missing:
            raise missing.as_command(self.command_with(missing.arms, missing.arguments)) from None

    def command_with(self, arms: Sequence[str], arguments: Sequence[str]) -> str:
        """Return this command, completed by further options.

        Args:
            arms: Sources with names, in place of `sources`; empty to keep `sources`.
            arguments: Further options and their values, alternating.
        """
        from ampcompare.analysis.external.missing_input import is_other_than_fp32
        from ampcompare.runtime.paths import shell_command

        pairs = list(zip(arguments[::2], arguments[1::2], strict=True))
        if ordered := _in_order_of(self.sources, arms):
            baseline = arms[0].partition("=")[0]
            is_named = self.baseline is not None or is_other_than_fp32(baseline)
            if ordered[0] != arms[0] and not is_named:  # otherwise the first arm would be the baseline
                pairs.append(("--baseline", baseline))
        added: dict[str, str | None] = dict(
            pair
            for pair in pairs
            if pair[0] != "--where"  # conditions do not replace others
        )
        words: list[str] = []
        sources = list(ordered or self.sources)
        for option, values in _split_words(self.words or self._words_of_fields()):
            if not option:
                words += sources
                sources = []
            elif option not in added:
                words += [option, *values]
            elif (value := added[option]) is not None:
                words += [option, value]
                pairs.remove((option, value))
                added[option] = None
        new = [word for pair in pairs for word in pair]
        return shell_command("ampcompare", "report", *words, *new)

    def _words_of_fields(self) -> list[str]:
        """Return the words that set these options, for options that nobody typed."""
        words = [*self.sources]
        for field in fields(self):
            option = OPTION_NAMES.get(field.name, f"--{field.name.replace('_', '-')}")
            value = getattr(self, field.name)
            if field.name in ("sources", "words") or value in (field.default, None):
                continue
            values = value if isinstance(value, list) else [value]
            words += [option] if value is True else [word for item in values for word in (option, str(item))]
        return words


def _split_words(words: Sequence[str]) -> Iterator[tuple[str, list[str]]]:
    """Yield each option of a command with its value, and "" for each source, in the order of the words."""
    flags = {f"--{field.name}" for field in fields(ReportOptions) if field.default is False}
    rest = iter(words)
    for word in rest:
        option, equals, value = word.partition("=")
        if not word.startswith("--") or word == "--":
            yield "", [word]
        elif equals:
            yield option, [value]
        else:
            yield option, [] if option in flags else [next(rest, "")]


def _in_order_of(sources: Sequence[str], arms: Sequence[str]) -> list[str]:
    """Return the arms (`fp32=logs/a`) in the order of the sources in which they lie."""

    def position(arm: str) -> int:
        """Return the index of the source of an arm."""
        place = Path(arm.partition("=")[2])
        indices = [i for i, source in enumerate(sources) if place.is_relative_to(source)]
        return indices[0] if indices else len(sources)

    return sorted(arms, key=position)


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
    flag = "--until-decided"
    return f"`{shell_command('ampcompare', *words, *([] if flag in words else [flag]))}`"


def split_names(text: str) -> tuple[str, ...]:
    """Return the names in a comma-separated list, each once."""
    return tuple(dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))
