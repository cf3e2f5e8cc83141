"""What a report was asked for, checked once; the command line has the same words."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ampcompare.errors import UserError

if TYPE_CHECKING:
    from ampcompare.report.analysis.analysis import Analysis

PICTURES = ("png", "svg")
FORMATS = ("html", "csv", "md", "json", *PICTURES)
ALL = "all"
PUBLICATIONS = (".yaml", ".yml")


@dataclass(frozen=True)
class Request:
    """What is to be reported. Raises UserError for what cannot be meant, before anything is read."""

    sources: list[str]
    out: str = "report"
    baseline: str | None = None
    metric: str | None = None
    throughput: str | None = None
    memory: str | None = None
    step: str | None = None  # the step column of CSV files
    margin: float | None = None
    target: float | None = None
    group_by: tuple[str, ...] | None = None
    ignore: tuple[str, ...] = ()
    formats: tuple[str, ...] = FORMATS
    reproduce: str | None = None
    within: float = 0.1  # what of a published ratio still counts as the same
    publish: str | None = None
    require: tuple[str, ...] = ()
    summary: str | None = None

    def __post_init__(self) -> None:
        if self.group_by is not None and not self.group_by:
            raise UserError("--group-by '': expected keys such as backend or backend,batch_size")
        for name in self.formats or ("",):
            if name not in FORMATS:
                raise UserError(f"--format {name!r}: expected some of {', '.join(FORMATS)}, or {ALL}")
        if not 0 < self.within < 1:
            raise UserError(f"--within {self.within:g}: expected a fraction above 0 and below 1, such as 0.1")
        if self.publish is not None and not self.publish.endswith(PUBLICATIONS):
            raise UserError(
                f"--publish {self.publish!r}: expected the name of a YAML file, such as mine.yaml"
            )
        if self.target is not None and not math.isfinite(self.target):
            raise UserError(f"--target {self.target}: expected a value of the metric, such as 0.93")
        if self.reproduce is not None:
            from ampcompare.published.publication import load

            load(self.reproduce)
        if self.require:
            from ampcompare.report.analysis.require import parse

            parse(self.require)

    def analyse(self, say: Callable[[str], None] = lambda line: None) -> Analysis:
        """Read the runs and compare them; `say` is told what was read but W&B's records, or passed over."""
        from ampcompare.records import load_runs
        from ampcompare.report.analysis.analysis import analyse_runs

        return analyse_runs(
            load_runs(self.sources, step=self.step, say=say),
            self.baseline,
            metric=self.metric,
            margin=self.margin,
            group_by=self.group_by,
            ignore=self.ignore,
            throughput=self.throughput,
            memory=self.memory,
            reproduce=self.reproduce,
            within=self.within,
            target=self.target,
            require=self.require,
        )


def chosen_formats(words: str) -> tuple[str, ...]:
    """The formats of `--format html,png`, and all of them of `all`."""
    chosen = names_in(words.lower())
    return FORMATS if chosen == (ALL,) else chosen


def names_in(words: str) -> tuple[str, ...]:
    """The names between the commas, each once."""
    return tuple(dict.fromkeys(word.strip() for word in words.split(",") if word.strip()))
