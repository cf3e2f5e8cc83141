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
from ampcompare.published.publication import BAR, MEASURED, MOST_ARMS, load
from ampcompare.records.tree import as_text, flatten, lookup
from ampcompare.report import words
from ampcompare.report.analysis.analysis import Analysis
from ampcompare.report.runs.figures import RunFigures, environment_of
from ampcompare.report.runs.groups import Group
from ampcompare.report.runs.measured import measured
from ampcompare.report.runs.sample import started
from ampcompare.report.statistics.samples import CONFIDENCE, mean

ENDINGS = (".yaml", ".yml")
MISSING = object()
ASIDE = with_role(Role.BOOKKEEPING, Role.REPEAT, Role.MAY_DIFFER) - {"max_steps"}
TOLD = {
    "seconds": "training alone, evaluation left out",
    "seconds_in_all": "from the first step to the last row, evaluations and checkpoints in it",
    "seconds_per_epoch": "training alone, evaluation left out",
    "images_per_second": "median of the log intervals after warm-up",
    "peak_memory": "the device's peak allocation; on a CPU the process's resident memory",
    "final_accuracy": "on the test split, after the last epoch",
    "best_accuracy": "on the test split, best evaluation",
}


def check_target(name: str) -> Path:
    """The file that a publication is to be written to. Raises UserError for another kind of name."""
    if not name.endswith(ENDINGS):
        raise UserError(f"--publish {name!r}: expected the name of a YAML file, such as mine.yaml")
    return Path(name)


def publish(analysis: Analysis, name: str) -> Path:
    """Write the runs' setting, arms and figures as a publication's file; returns it. Raises UserError."""
    import yaml

    path = check_target(name)
    content = _content(analysis)
    text = yaml.safe_dump(content, sort_keys=False, allow_unicode=True, width=100)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path) as file:
            file.write(text.encode("utf-8", "replace"))
    except (OSError, ValueError) as problem:
        raise UserError(f"--publish {name!r}: cannot be written: {reason(problem)}") from None
    load(str(path))
    return path


def _content(analysis: Analysis) -> dict[str, Any]:
    groups = [group for group in analysis.groups if group.counted and not group.is_control]
    baseline = analysis.baseline
    if any(f.settings is not None for group in groups for f in group.runs):
        raise UserError("--publish: the runs are another program's, whose settings are no options of ours")
    if baseline is None or baseline not in groups or any(group.is_unfinished for group in groups):
        why = "no run of the baseline" if baseline not in groups else "runs that have not finished"
        raise UserError(f"--publish: there are {why}; publish what is whole, or name another --baseline")
    if len(groups) > MOST_ARMS:
        raise UserError(f"--publish: {len(groups)} groups; {MOST_ARMS} at most")
    options = [_options(group) for group in groups]
    varying = [key for key in dict.fromkeys(k for one in options for k in one) if _varies(key, options)]
    arms = {
        _text(group.label): {key: own[key] for key in ("backend", *varying) if key in own}
        for group, own in zip(groups, options, strict=True)
    }
    _check_apart(groups, list(arms.values()))
    runs = [f for group in groups for f in group.counted]
    figures = dict(_figures(groups))
    return {
        "title": _text(f"{analysis.setting.words}: {words.listed(arms)}"),
        "source": f"runs recorded by AMP Compare {__version__}",
        "note": _text(f"Of the records {words.some(list(dict.fromkeys(f.run.id for f in runs)), 100)}"),
        **_where(runs),
        "runs": min(group.n for group in groups),
        "setting": {k: v for k, v in options[0].items() if k not in ("backend", *varying)},
        "baseline": _text(baseline.label),
        "arms": arms,
        "figures": figures,
        "charts": [_chart(name) for name in figures],
    }


def _options(group: Group) -> dict[str, Any]:
    """What a group's runs were asked for, and what of it may be said of all: no seed, no folder."""
    config = group.counted[0].run.config
    found: dict[str, Any] = {}
    for key, leaf in LEAVES.items():
        value = lookup(config, key, leaf.default)
        if value is MISSING or key in ASIDE or key.startswith(("plan.", "published.")):
            continue
        if leaf.is_tree:
            inner = value if isinstance(value, Mapping) else {}
            found |= {f"{key}.{name}": part for name, part in flatten(inner)}
        elif _is_plain(value):
            found[key] = value
    return found


def _is_plain(value: Any) -> bool:
    if isinstance(value, list):
        return all(map(_is_plain, value))
    return value is None or isinstance(value, bool | int | float | str)


def _varies(key: str, options: Sequence[Mapping[str, Any]]) -> bool:
    values = [one.get(key, MISSING) for one in options]
    return key != "backend" and any(value != values[0] for value in values)


def _check_apart(groups: Sequence[Group], arms: Sequence[Mapping[str, Any]]) -> None:
    for number, arm in enumerate(arms):
        if arm in arms[:number]:
            twin = groups[arms.index(arm)].label
            raise UserError(
                f"--publish: {groups[number].label!r} and {twin!r} differ in no option, but in the machine "
                "or its software; publish the runs of one machine"
            )


def _where(runs: Sequence[RunFigures]) -> dict[str, str]:
    devices = dict.fromkeys(f.device for f in runs if f.device)
    torch = dict.fromkeys(as_text(v) for f in runs if (v := environment_of(f.run).get("torch")))
    began = [f.run.started_at for f in sorted(runs, key=started) if f.run.started_at]
    told = {
        "date": f"{began[-1]:%Y-%m-%d}" if began else "",
        "hardware": _text(words.listed(devices)),
        "software": _text(f"torch {words.listed(torch)}" if torch else ""),
    }
    return {key: text for key, text in told.items() if text}


def _figures(groups: Sequence[Group]) -> Iterator[tuple[str, dict[str, Any]]]:
    for name, kind in MEASURED.items():
        values = {_text(group.label): figure for group in groups if (figure := _figure(group, name))}
        if values:
            yield name, {"measured": name, "what": TOLD[name], "unit": kind.unit, "values": values}


def _figure(group: Group, name: str) -> Any:
    """A figure with its interval and n; of one run as text, with the digits that it has."""
    low = 0.0 if not MEASURED[name].is_share else -1e9
    found = mean(measured(group, name), low)
    if found is None:
        return None
    if found.low is None or found.high is None:
        return f"{found.value:.6f}"
    ends = {"value": _short(found.value), "low": _short(found.low), "high": _short(found.high)}
    return {**ends, "n": found.n, "confidence": CONFIDENCE}


def _short(value: float) -> float:
    """Without the digits that nobody can measure: 78.504 for 78.50399999999999."""
    return float(f"{value:.7g}")


def _chart(figure: str) -> dict[str, Any]:
    kind = MEASURED[figure]
    panel = {"figure": figure, "kind": BAR, "x": "", "y": f"{kind.words}, {kind.unit}"}
    return {"title": words.capital(kind.words), "panels": [panel]}


def _text(text: str) -> str:
    return words.printable(text)
