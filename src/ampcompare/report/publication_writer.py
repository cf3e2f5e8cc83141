"""`ampcompare report --publish`: write runs as a publication that others can reproduce."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from ampcompare import __version__
from ampcompare.analysis.analysis import Analysis
from ampcompare.analysis.grouping.distinguishing_settings import BACKEND
from ampcompare.analysis.grouping.groups import Group, sample_measurement
from ampcompare.analysis.statistics.estimate import ALPHA, Estimate
from ampcompare.analysis.statistics.mean_difference import estimate_mean
from ampcompare.config.schema import OPTIONS
from ampcompare.errors import UserError
from ampcompare.identity.agreement import PUBLICATION, TRAINING
from ampcompare.identity.run_identity import keys_with
from ampcompare.publications.publication import MEASUREMENTS, load_publication
from ampcompare.runs.nested import as_text, flatten
from ampcompare.runtime.atomic_files import write_file
from ampcompare.runtime.formatting import listed, printable, some

# What is published: the training, in the order in which options are declared.
PUBLISHED = {*keys_with(TRAINING), *PUBLICATION.reported_keys}
MAX_RECORDS = 100  # more ids are counted, not listed


def publish(analysis: Analysis, name: str) -> Path:
    """Write the setting, arms and measured values of the runs as a publication.

    Args:
        analysis: The compared runs.
        name: The file to write.

    Returns:
        The file.

    Raises:
        UserError: If the runs cannot be published, or the file cannot be written.
    """
    import yaml

    content = yaml.safe_dump(_content(analysis), sort_keys=False, allow_unicode=True, width=100)
    path = write_file(Path(name), content)
    load_publication(name)
    return path


def _content(analysis: Analysis) -> dict[str, Any]:
    groups = [group for group in analysis.groups if group.n and not group.is_control]
    base, runs = analysis.baseline, [run for group in groups for run in group.records]
    if any(run.option(BACKEND) is None for run in runs):
        raise UserError(
            "--publish: these runs have no option `backend`; only runs of AMP Compare can be published"
        )
    if base is None or base not in groups or any(group.is_unfinished for group in groups):
        why = "the baseline has no run" if base not in groups else "some runs have not finished"
        raise UserError(f"--publish: {why}; finish the runs, or choose another --baseline")
    options = [_options(group) for group in groups]
    keys = dict.fromkeys(key for own in options for key in own)
    varying = [k for k in keys if k == BACKEND or any(own.get(k) != options[0].get(k) for own in options)]
    arms = [{key: own[key] for key in varying if key in own} for own in options]
    if ambiguous := [group.label for group, arm in zip(groups, arms, strict=True) if arms.count(arm) > 1]:
        what = "differ only in machine or software, not in an option; publish the runs of one machine"
        raise UserError(f"--publish: {listed(map(repr, ambiguous))} {what}")
    labels = [printable(group.label) for group in groups]
    began = [run.started_at for run in runs if run.started_at]
    torch = dict.fromkeys(as_text(name) for run in runs if (name := run.environment.get("torch")))
    texts = {
        "title": f"{analysis.setting.text}: {listed(labels)}",
        "source": f"runs recorded by AMP Compare {__version__}",
        "note": f"Records: {some([run.id for run in runs], MAX_RECORDS)}",
        "date": f"{max(began):%Y-%m-%d}" if began else "",
        "hardware": listed(sorted({name for group in groups for name in group.devices if name})),
        "software": f"torch {listed(torch)}" if torch else "",
    }
    return {key: printable(text) for key, text in texts.items() if text} | {
        "runs": min(group.n for group in groups),
        "setting": {key: value for key, value in options[0].items() if key not in varying},
        "baseline": printable(base.label),
        "arms": dict(zip(labels, arms, strict=True)),
        "figures": dict(_figures(groups)),
    }


def _options(group: Group) -> dict[str, Any]:
    """Return the options of a group's runs, without those that differ between them (seed, folder)."""
    options: dict[str, Any] = {}
    for key, spec in OPTIONS.items():
        if key in PUBLISHED:
            value = group.records[0].option(key, spec.default)
            is_mapping = spec.is_free_form and isinstance(value or {}, Mapping)
            options |= dict(flatten(value or {}, f"{key}.")) if is_mapping else {key: value}
    return options


def _figures(groups: Sequence[Group]) -> Iterator[tuple[str, dict[str, Any]]]:
    for name, kind in MEASUREMENTS.items():
        estimates = {
            printable(group.label): estimate_mean(sample_measurement(group, name)) for group in groups
        }
        values = {
            label: _printed(one, kind.is_percentage) for label, one in estimates.items() if one is not None
        }
        if values:
            yield name, {"measured": name, "what": kind.label, "unit": kind.unit, "values": values}


def _printed(estimate: Estimate, is_percentage: bool) -> Any:
    """Return a value with its interval and n; without an interval as text."""
    if estimate.low is None or estimate.high is None:
        return f"{estimate.value:.6f}"
    # Without the digits of rounding errors: 78.504 for 78.50399999999999.
    ends = {
        "value": estimate.value,
        "low": estimate.low if is_percentage else max(estimate.low, 0.0),
        "high": estimate.high,
    }
    return {key: float(f"{end:.7g}") for key, end in ends.items()} | {
        "n": estimate.n,
        "confidence": 1 - ALPHA,
    }
