"""Which differences count for which purpose: the table, and what the code that asks decides by it.

`tests/contract/golden/identity.yaml` has the decision of every purpose for a change of every option. It was
made with the code of version 0.3, in which nine modules decided, and holds since.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pandas as pd
import pytest
from support import contract
from support.quick import ROOT

from ampcompare.analysis import bench_match, publication_match
from ampcompare.analysis.grouping.distinguishing_settings import identity_of, settings_of
from ampcompare.config.option_spec import OptionSpec, Role, option, option_specs
from ampcompare.config.schema import OPTIONS
from ampcompare.identity import run_identity
from ampcompare.identity.agreement import (
    AGREEMENTS,
    BENCHMARK,
    POINT,
    REPLAY,
    SWEEP,
)
from ampcompare.identity.run_identity import RunIdentity, differences
from ampcompare.publications.publication import load_publication
from ampcompare.runs import RunRecord
from ampcompare.runs.run_state import RunState
from ampcompare.training.checkpoint import store
from ampcompare.why import recorded_run

Config = dict[str, Any]
ENVIRONMENT = {
    "device_type": "cpu",
    "device_name": "a processor",
    "processes": 1,
    "torch": "2.12",
    "data_fingerprint": "f00d-10-10",
    "packages": {"ampcompare": "0.4.0"},
}
# Values that differ from the default, where the type alone gives none.
OTHERS: Mapping[str, Any] = {
    "recipe": "stable",
    "memory_format": "channels_last",
    "device": "mps",
    "model.name": "resnet20",
    "model.kwargs": {"width": 64},
    "data.source": "synthetic",
    "data.kwargs": {"size": 64},
    "task.metrics": ["accuracy"],
    "task.metric": "top5_accuracy",
    "precision.loss_scale": 1024.0,
    "precision.keep_fp32": ["fc"],
    "precision.keep_batchnorm_fp32": False,
}


# Options about which a purpose decides by more than their role, so that a record has to have them.
DEFAULT_MATTERS = {"backend", "data.source", "device", "diagnostics.every", "max_steps", "memory_format"}
DEFAULT_MATTERS |= {"model.name", "optimizer.fused"}


def other_value(spec: OptionSpec) -> Any:
    """Return a value that the option may have, and that is not its default."""
    if spec.key in OTHERS:
        return OTHERS[spec.key]
    if spec.choices:
        return next(choice for choice in spec.choices if choice != spec.default)
    if spec.type is bool:
        return spec.default is not True
    if spec.type is list:
        return [5.0, 7.0] if spec.item is float else [5, 7] if spec.item is int else ["other"]
    if spec.type is str:
        return "other"
    return 3 if spec.type is int else 0.25


def config_with(**changes: Any) -> Config:
    """Return the config of a run under apex O2, whose options of `precision` all have an effect."""
    values = {key: spec.default for key, spec in OPTIONS.items()} | {"backend": "apex_o2"} | changes
    config: Config = {}
    for key, value in values.items():
        group, _, name = key.rpartition(".")
        (config.setdefault(group, {}) if group else config)[name] = value
    return config


def record(config: Config) -> RunRecord:
    """Return a record of the config; the environment has the layout that `auto` stood for."""
    layout = {"memory_format": config["memory_format"].replace("auto", "contiguous")}
    summary = {"environment": ENVIRONMENT | layout, "data/test_set": "beef"}
    return RunRecord(id="r", state=RunState.FINISHED, config=config, summary=summary)


NAMES = SimpleNamespace(  # for messages
    model=SimpleNamespace(name="m"),
    data=SimpleNamespace(source="d"),
    task=SimpleNamespace(loss="l"),
    backend="b",
)


def decisions(config: Config, changed: Config) -> dict[str, str]:
    """Return what each purpose decides about two runs on one machine: `equal`, `reported` or `differs`.

    Each purpose is asked by the function that the command calls.
    """
    one, other = record(config), record(changed)
    first, second = (RunIdentity.of_run(run.config, run.environment) for run in (one, other))
    saved = store.saved_identity(first)
    found = {"resume": "differs" if store.differences_from(saved, second) else "equal"}
    replayed: Any = SimpleNamespace(record=one, config=NAMES)
    found["replay"] = "differs" if recorded_run.describe_changes(replayed, second, None) else "equal"
    found["sweep"] = "differs" if differences(first, second, SWEEP.equal) else "equal"
    found["point"] = "equal" if first.select(POINT.roles) == second.select(POINT.roles) else "differs"
    found["repeat"] = "equal" if settings_of(one) == settings_of(other) else "differs"
    found["bench"] = of_benchmark(first, other)
    found["publication"] = of_publication(config, other)
    return found


def bench_options(identity: RunIdentity) -> dict[str, str]:
    """Return the options of an arm, as `ampcompare bench --json` writes them."""
    options = identity.select(BENCHMARK.roles - {Role.DATA})
    texts = {
        k: run_identity.value_text(v) for k, v in options.items() if not run_identity.is_recorded_fact(k)
    }
    return texts if any(key.startswith("model.kwargs.") for key in texts) else texts | {"model.kwargs": "{}"}


def of_benchmark(measured: RunIdentity, run: RunRecord) -> str:
    group: Any = SimpleNamespace(all_rows=pd.DataFrame({"run": [run]}), identities=[identity_of(run)])
    fingerprint = {"model": measured.options["model.name"], "data": measured.options["data.source"]}
    options = bench_options(measured)
    is_same = bench_match.is_same_execution(options, group)
    if not is_same or bench_match.identity_differences(fingerprint, options, group):
        return "differs"
    return "reported" if bench_match.tolerated_differences(fingerprint, options, group) else "equal"


def of_publication(config: Config, run: RunRecord) -> str:
    """Return how a run differs from a publication of the other config."""
    published = {"arm": RunIdentity.of_run(config)}
    publication: Any = SimpleNamespace(name="mine", baseline="arm", arm_keys=())
    conditions, arm, _ = publication_match._conditions_of(run, publication, published)
    if not arm:
        return "differs"
    return "reported" if conditions.deviations else "equal"


def test_every_purpose_decides_as_before_about_every_option(tmp_path: Path):
    before = config_with()
    found = {}
    for key, spec in OPTIONS.items():
        found[key] = contract.Inline(decisions(before, config_with(**{key: other_value(spec)})))
        absent = config_with()  # a record without the option had its default
        group, _, name = key.rpartition(".")
        del (absent[group] if group else absent)[name]
        if key not in DEFAULT_MATTERS:
            assert set(decisions(before, absent).values()) == {"equal"}, key
    contract.check(ROOT / "tests" / "contract" / "golden" / "identity.yaml", {"options": found}, tmp_path)


def test_an_option_without_a_role_is_refused():
    @dataclass
    class Group:
        width: int = option(1, "The width.")

    with pytest.raises(TypeError, match="width: the option has no role"):
        list(option_specs(Group))


def test_the_documentation_has_the_tables_of_the_code():
    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    for role in Role:
        assert f"\n| {role.name.lower()} | {role.value} |\n" in page
    for agreement in AGREEMENTS:
        (line,) = [line for line in page.splitlines() if line.startswith(f"| {agreement.purpose} |")]
        _, _, equal, reported, where, _ = (cell.strip() for cell in line.split("|"))
        for cell, roles, keys in (
            (equal, agreement.equal, ()),
            (reported, agreement.reported, agreement.reported_keys),
        ):
            words = {word.strip("`") for word in cell.partition(";")[0].split(", ")} - {"-"}
            assert words == {*(role.name.lower() for role in roles), *keys}
        assert where == f"`{agreement.where}`"
        assert (ROOT / "src" / "ampcompare" / agreement.where).is_file()
        assert not agreement.equal & agreement.reported


def test_why_at_names_the_options_that_may_differ():
    allowed = {*recorded_run.MAY_DIFFER} - {recorded_run.OUTPUT_DIR}
    assert allowed == {key for key, spec in OPTIONS.items() if spec.role is Role.SESSION}
    assert not {OPTIONS[key].role for key in allowed} & REPLAY.equal


def test_what_scaling_changes_is_no_deviation_of_a_scaled_run():
    """`published.scale` and `published.network` change no option of which a report then says it deviates."""
    from ampcompare.config.publication_config import arm_config
    from ampcompare.publications.publication import list_publications

    for name in list_publications():
        publication = load_publication(name)
        for arm in publication.arms:
            full = RunIdentity.of_run(arm_config(publication, arm).to_dict())
            scaled = RunIdentity.of_run(arm_config(publication, arm, 0.1, "tiny").to_dict())
            keys = [difference.key for difference in differences(full, scaled, set(Role))]
            assert keys
            assert [key for key in keys if not key.startswith(publication_match.SHRUNK)] == []
