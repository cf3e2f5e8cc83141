"""`ampcompare report --publish`: one's own runs as a publication, which others can reproduce and judge."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from ampcompare import __version__
from ampcompare.config.options import Role
from ampcompare.config.schema import LEAVES, with_role
from ampcompare.errors import UserError, reason
from ampcompare.program.files import replacing
from ampcompare.published.publication import MEASURED, MOST_ARMS, load
from ampcompare.records.tree import as_text, flatten
from ampcompare.report.analysis.analysis import Analysis
from ampcompare.report.runs.groups import Group
from ampcompare.report.runs.measured import measured
from ampcompare.report.runs.settings import BACKEND
from ampcompare.report.runs.table import environment_of
from ampcompare.report.statistics.estimate import ALPHA
from ampcompare.report.statistics.samples import mean
from ampcompare.report.words import listed, printable, some

ASIDE = with_role(Role.BOOKKEEPING, Role.REPEAT, Role.MAY_DIFFER) - {"max_steps"}
MOST_RECORDS = 100  # whose ids are named
TOLD = {
    "seconds": "training alone, evaluation left out",
    "seconds_in_all": "from the first step to the last row, evaluations and checkpoints in it",
    "seconds_per_epoch": "training alone, evaluation left out",
    "images_per_second": "median of the log intervals after warm-up",
    "peak_memory": "the device's peak allocation; on a CPU the process's resident memory",
    "final_accuracy": "on the test split, after the last epoch",
    "best_accuracy": "on the test split, best evaluation",
}


def publish(analysis: Analysis, name: str) -> Path:
    """Write the runs' setting, arms and figures as a publication's file; returns it. Raises UserError."""
    import yaml

    path, content = Path(name), _content(analysis)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path) as file:
            text = yaml.safe_dump(content, sort_keys=False, allow_unicode=True, width=100)
            file.write(text.encode("utf-8", "replace"))
    except (OSError, ValueError) as problem:
        raise UserError(f"--publish {name!r}: cannot be written: {reason(problem)}") from None
    load(name)
    return path


def _content(analysis: Analysis) -> dict[str, Any]:
    groups = [group for group in analysis.groups if group.n and not group.is_control]
    base, runs = analysis.baseline, [run for group in groups for run in group.records]
    if any(run.option(BACKEND) is None for run in runs):
        raise UserError("--publish: the runs are another program's, whose settings are no options of ours")
    if base not in groups or base is None or any(group.is_unfinished for group in groups):
        why = "no run of the baseline" if base not in groups else "runs that have not finished"
        raise UserError(f"--publish: there are {why}; publish what is whole, or name another --baseline")
    if len(groups) > MOST_ARMS:
        raise UserError(f"--publish: {len(groups)} groups; {MOST_ARMS} at most")
    options = [_options(group) for group in groups]
    keys = dict.fromkeys(key for one in options for key in one)
    varying = [
        key for key in keys if key == BACKEND or any(one.get(key) != options[0].get(key) for one in options)
    ]
    arms = [{key: own[key] for key in varying if key in own} for own in options]
    if twins := [group.label for group, arm in zip(groups, arms, strict=True) if arms.count(arm) > 1]:
        raise UserError(
            f"--publish: {listed(map(repr, twins))} differ in no option, but in the machine or its software; "
            "publish the runs of one machine"
        )
    labels = [printable(group.label) for group in groups]
    began = [run.started_at for run in runs if run.started_at]
    torch = dict.fromkeys(as_text(found) for run in runs if (found := environment_of(run).get("torch")))
    told = {
        "title": f"{analysis.setting.words}: {listed(labels)}",
        "source": f"runs recorded by AMP Compare {__version__}",
        "note": f"Of the records {some([run.id for run in runs], MOST_RECORDS)}",
        "date": f"{max(began):%Y-%m-%d}" if began else "",
        "hardware": listed(sorted({name for group in groups for name in group.devices if name})),
        "software": f"torch {listed(torch)}" if torch else "",
    }
    return {
        **{key: printable(text) for key, text in told.items() if text},
        "runs": min(group.n for group in groups),
        "setting": {key: value for key, value in options[0].items() if key not in varying},
        "baseline": printable(base.label),
        "arms": dict(zip(labels, arms, strict=True)),
        "figures": dict(_figures(groups)),
    }


def _options(group: Group) -> dict[str, Any]:
    """What a group's runs were asked for, and what of it may be said of all: no seed, no folder."""
    run = group.records[0]
    asked = {key: run.option(key, leaf.default) for key, leaf in LEAVES.items() if not _is_aside(key)}
    found: dict[str, Any] = {}
    for key, value in asked.items():
        is_tree = LEAVES[key].is_tree and isinstance(value or {}, Mapping)
        found |= {f"{key}.{name}": part for name, part in flatten(value or {})} if is_tree else {key: value}
    return found


def _is_aside(key: str) -> bool:
    return key in ASIDE or key.startswith(("plan.", "published."))


def _figures(groups: Sequence[Group]) -> Iterator[tuple[str, dict[str, Any]]]:
    for name, kind in MEASURED.items():
        values = {printable(g.label): figure for g in groups if (figure := _figure(g, name)) is not None}
        if values:
            yield name, {"measured": name, "what": TOLD[name], "unit": kind.unit, "values": values}


def _figure(group: Group, name: str) -> Any:
    """A figure with its interval and n; without an interval as text, with the digits that it has."""
    if (found := mean(measured(group, name))) is None:
        return None
    if found.low is None or found.high is None:
        return f"{found.value:.6f}"
    low = found.low if MEASURED[name].is_share else max(found.low, 0.0)
    # Without the digits that nobody can measure: 78.504 for 78.50399999999999.
    ends = {"value": found.value, "low": low, "high": found.high}
    return {key: float(f"{end:.7g}") for key, end in ends.items()} | {"n": found.n, "confidence": 1 - ALPHA}
