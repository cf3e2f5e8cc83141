"""The options of an analysis of runs: what is compared, and how logs of other programs are read."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

from typer import Option

from ampcompare.errors import UserError

COMMA_SEPARATED = ("group_by", "split_by", "ignore")  # on the command line


def split_names(text: str) -> tuple[str, ...]:
    """Return the names in a comma-separated list, each once."""
    return tuple(dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))


@dataclass(frozen=True, kw_only=True)
class AnalysisOptions:
    """The options of `ampcompare report` that change what is compared, and of `analyse_runs`.

    The help of each field is its documentation. On the command line, `split_by` is `--split-by`. Where no
    other default is named, None leaves the choice to the runs: to their task, their plan or their format. If
    they do not say either, the user is asked.

    Raises:
        UserError: If an option has a bad value. It names the option as on the command line.
    """

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
            metavar="KEY:UNIT:KIND",
            help="Instead of --throughput: metric with the time, in seconds or ms. KEY:seconds:each for the "
            "time of a step or an epoch, KEY:seconds:cumulative if it counts from the start.",
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
        Sequence[str],
        Option(
            metavar="[KEY:]COLUMN=VALUE",
            help="Rows that count in logs of other programs, where training and evaluation rows have the "
            "same key: split=val, or time:split=train for one key. May be given several times.",
        ),
    ] = ()
    bench: Annotated[
        str | None,
        Option(
            metavar="FILE",
            help="Take the speed from this file of `ampcompare bench --json`, and the memory if the runs "
            "have none.",
        ),
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
            help="Value of the metric, such as 0.93: the time to reach it is compared. Default: from the "
            "plan.",
        ),
    ] = None
    group_by: Annotated[
        Sequence[str] | None,
        Option(
            metavar="KEYS",
            help="Comma-separated settings that define the groups, such as backend,batch_size. The first is "
            "compared.",
        ),
    ] = None
    split_by: Annotated[
        Sequence[str],
        Option(
            metavar="KEYS",
            help="Comma-separated settings that divide the runs of a named arm into groups.",
        ),
    ] = ()
    seed: Annotated[
        str | None, Option(metavar="KEY", help="Setting that pairs runs, if it is not called seed.")
    ] = None
    ignore: Annotated[
        Sequence[str],
        Option(
            metavar="KEYS",
            help="Comma-separated settings in which pooled runs may differ.",
        ),
    ] = ()
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
    require: Annotated[
        Sequence[str],
        Option(
            metavar="TERMS",
            help="Requirement that the runs must show, such as 'native: speedup >= 1.5'. May be given "
            "several times.",
        ),
    ] = ()

    def __post_init__(self) -> None:
        if self.group_by is not None and not self.group_by:
            raise UserError("--group-by '': expected keys such as backend or backend,batch_size")
        if not 0 < self.within < 1:
            raise UserError(f"--within {self.within:g}: expected a fraction above 0 and below 1, such as 0.1")
        if self.target is not None and not math.isfinite(self.target):
            raise UserError(f"--target {self.target}: expected a value of the metric, such as 0.93")
        if self.reproduce is not None:
            from ampcompare.publications.publication import load_publication

            load_publication(self.reproduce)
        if self.require:
            from ampcompare.analysis.gates import parse_gates

            parse_gates(self.require)
