"""Identities of runs: made, recorded, read back, and compared for every purpose."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pandas as pd
from support.quick import QUICK

from ampcompare import load_runs
from ampcompare.analysis import publication_match
from ampcompare.analysis.bench_results import BenchResults
from ampcompare.analysis.grouping.distinguishing_settings import identity_of, settings_of
from ampcompare.config.load import load_config
from ampcompare.config.option_spec import Role
from ampcompare.config.publication_config import arm_config
from ampcompare.config.schema import OPTIONS
from ampcompare.experiment import run
from ampcompare.identity.agreement import REPEAT, RESUME
from ampcompare.identity.run_identity import (
    DATA,
    ENVIRONMENT,
    TRAIN_DATA,
    RunIdentity,
    differences,
    effective_options,
    is_same,
    typed,
)
from ampcompare.publications.publication import list_publications, load_publication
from ampcompare.runs import RunRecord
from ampcompare.runs.run_state import RunState
from ampcompare.training.checkpoint import store

Config = dict[str, Any]


def nested(flat: Config) -> Config:
    config: Config = {}
    for key, value in flat.items():
        group, _, name = key.rpartition(".")
        (config.setdefault(group, {}) if group else config)[name] = value
    return config


def environment_of(config: Config) -> dict[str, Any]:
    layout = config["memory_format"].replace("auto", "contiguous")
    facts = {"device_type": "cpu", "device_name": "CPU", "processes": 1, "memory_format": layout}
    return facts | {"data_fingerprint": "f00d-1-1"}


def record_of(config: Config) -> RunRecord:
    summary = {"environment": environment_of(config), "data/test_set": "beef"}
    return RunRecord(id="r", state=RunState.FINISHED, config=nested(config), summary=summary)


def of(config: Config) -> RunIdentity:
    return RunIdentity.of_run(nested(config), environment_of(config), {"data/test_set": "beef"})


def test_the_effective_options_are_those_of_the_typed_config():
    """It does not matter whether a record is nested or flat, or a text has the value of a number."""
    defaults = {key: spec.default for key, spec in OPTIONS.items()}
    scaled = {"backend": "apex_o2", "precision.loss_scale": 128.0, "precision.keep_fp32": ["fc", "bn"]}
    for changes in ({}, scaled, {"backend": "tf32", "tf32": True}, {"model.kwargs": {"width": 1}}):
        config = defaults | changes
        expected = effective_options(nested(config))
        assert effective_options(config) == expected
        texts = {k: str(v) if type(v) in (int, float) else v for k, v in config.items()}
        assert effective_options(texts) == expected
        whole = {k: int(v) if isinstance(v, float) and v.is_integer() else v for k, v in config.items()}
        assert effective_options(whole) == expected
        saved = json.loads(json.dumps(store.saved_identity(of(config))))  # as a checkpoint has it
        assert not store.differences_from(saved, of(config))
    plain = effective_options(defaults)
    assert effective_options(defaults | {"output_dir": "a", "plan.margin": 1.0}) == plain  # bookkeeping
    assert effective_options({}) == plain  # what a record lacks has the default
    without_scale = {"backend": "bf16", "precision.init_scale": 2.0}
    assert effective_options(defaults | without_scale) == effective_options(defaults | {"backend": "bf16"})


def test_a_run_of_a_publication_matches_its_arm():
    """Also if the publication gives arguments to network and data, or milestones as whole numbers."""
    for name in list_publications():
        publication = load_publication(name)
        arms = publication.arms
        published = {arm: RunIdentity.of_run({**publication.setting, **own}) for arm, own in arms.items()}
        for arm in arms:
            config = arm_config(publication, arm).to_dict()
            flat = {key: value for key, value in config.items() if not isinstance(value, dict)}
            record = RunRecord(id="r", state=RunState.FINISHED, config=flat | config)
            conditions, found, why = publication_match._conditions_of(record, publication, published)
            assert (found, why, conditions.deviations) == (arm, "", ())


def test_a_run_is_identified_once_and_its_record_says_the_same(tmp_path: Path):
    """The record, the checkpoint and a second run with these options have one identity."""
    config = load_config(None, [*QUICK, "epochs=1", f"output_dir={tmp_path}"])
    result = run(config)
    assert result.record is not None
    (record,) = load_runs([str(result.record)])
    recorded = RunIdentity.of_run(record.config, record.environment, record.summary)
    (file,) = (tmp_path / "checkpoints").glob("*/run.json")
    saved = json.loads(file.read_text())["identity"]
    assert saved == RunIdentity.of_run(record.config, record.environment).named_parts(RESUME.roles)
    assert not store.differences_from(saved, recorded)
    assert recorded.facts[DATA] == saved["data"]
    now = RunIdentity.of_run(config.to_dict(), record.environment)
    assert not differences(now, recorded, set(Role))


def test_data_that_depend_on_the_seed_are_recorded(tmp_path: Path):
    (tmp_path / "own.py").write_text(
        "import numpy as np\n"
        "def build(train, seed):\n"
        "    draw = np.random.default_rng(seed if train else 0)\n"
        "    n = 32 if train else 16\n"
        "    return draw.random((n, 3, 32, 32), dtype=np.float32), draw.integers(0, 10, n)\n"
    )
    words = [word for word in QUICK if not word.startswith("data.")]
    identities = []
    for seed in (1, 2):
        options = ["epochs=1", f"output_dir={tmp_path}/{seed}", f"data.source={tmp_path}/own.py:build"]
        result = run(load_config(None, [*words, *options, f"seed={seed}"]))
        (record,) = load_runs([str(result.record)])
        identities.append(RunIdentity.of_run(record.config, record.environment))
        assert settings_of(record).keys().isdisjoint({TRAIN_DATA})
    first, second = identities
    found = {difference.key for difference in differences(first, second, RESUME.roles)}
    assert found == {"seed", TRAIN_DATA}
    assert not differences(first, second, REPEAT.roles)


def saved_by(version: str) -> dict[str, Any]:
    """Return `run.json` of an earlier version: without options that came later, with the former names."""
    saved = store.saved_identity(of({key: spec.default for key, spec in OPTIONS.items()}))
    for key in ("training.perturb_weights", "precision.weights", "optimizer.fused"):
        del saved[key]
    return saved | ({} if version == "0.4" else {"training.later": 1})


def test_an_option_that_an_earlier_version_lacks_had_its_default():
    config = {key: spec.default for key, spec in OPTIONS.items()}
    assert not store.differences_from(saved_by("0.4"), of(config))
    (one,) = store.differences_from(saved_by("0.4"), of(config | {"training.perturb_weights": "one_ulp"}))
    assert one == ("training.perturb_weights", "none", "one_ulp")
    (one,) = store.differences_from(saved_by("later"), of(config))
    assert one == ("training.later", 1, None)


def test_the_network_decides_which_options_have_an_effect():
    """`model.stem` is one of built-in networks, as a warning says: a network of the user ignores it."""
    own = {key: spec.default for key, spec in OPTIONS.items()} | {"model.name": "./net.py:build"}
    other = own | {"model.stem": "imagenet", "model.zero_init_residual": True}
    assert not differences(of(own), of(other), set(Role))
    assert settings_of(record_of(own)) == settings_of(record_of(other))
    saved = store.saved_identity(of(own)) | {"model.stem": "cifar", "model.zero_init_residual": False}
    assert not store.differences_from(saved, of(other))  # an earlier version wrote them
    built_in = own | {"model.name": "resnet20"}
    assert differences(of(built_in), of(built_in | {"model.stem": "imagenet"}), {Role.NETWORK})


def results_of(*arms: dict[str, str]) -> BenchResults:
    """Return a benchmark of these options, the first arm the baseline."""
    numbers = {"ratio": 1.0, "low": 0.9, "high": 1.1, "images_per_second": 1.0, "peak_mib": 1.0, "rounds": 3}
    rows = [{"label": str(number), "options": arm, **numbers} for number, arm in enumerate(arms)]
    content = {"baseline": "0", "level": 0.95, "machine": "m", "device": "CPU", "fingerprint": {}}
    return BenchResults.model_validate(content | {"control": rows[0], "arms": rows})


def group_of(*configs: Config, **environment: Any) -> Any:
    records = [record_of(config) for config in configs]
    for record in records:
        record.summary["environment"] |= environment
    return SimpleNamespace(
        devices={"CPU"},
        value=configs[0]["backend"],
        all_rows=pd.DataFrame({"run": records}),
        identities=[identity_of(record) for record in records],
    )


def test_arms_of_one_backend_are_told_apart_by_its_options():
    """Also by options that no file of version 0.3 has."""
    config = {key: spec.default for key, spec in OPTIONS.items()} | {"backend": "native"}
    kept = config | {"precision.keep_fp32": ["fc"]}
    arms = [
        {"backend": "native", "precision.keep_fp32": "null"},
        {"backend": "native", "precision.keep_fp32": "fc"},
        {"backend": "native", "precision.keep_fp32": "null", "model.kwargs": "{}", "deterministic": "True"},
    ]
    results = results_of(*arms)
    for runs, label in ((config, "0"), (kept, "1")):
        arm = results.find_arm(group_of(runs))
        assert arm is not None
        assert arm.label == label
    (line,) = results_of(arms[0]).caveats([SimpleNamespace(**vars(group_of(kept)), is_control=False)])
    assert line == "The benchmark and the runs differ in precision.keep_fp32."
    wider = config | {"model.kwargs": {"width": 8}}
    assert results_of(arms[2]).find_arm(group_of(wider | {"deterministic": True})) is None


def test_values_are_the_same_whatever_their_type():
    assert is_same(1, 1.0)
    assert is_same("1e-1", 0.1)
    assert is_same([100, 150], [100.0, 150.0])
    assert is_same([], "null")
    assert not is_same(None, 0)
    assert not is_same([1, 2], [2, 1])
    assert typed("precision.keep_fp32", "fc,bn") == typed("precision.keep_fp32", ["fc", "bn"]) == ["bn", "fc"]
    assert typed("no.option", "fc,bn") == "fc,bn"
    hostile: Any = {"deep": {}}
    for _ in range(3_000):
        hostile = {"deep": hostile}
    for key in ("batch_size", "data.mean", "model.name", "precision.keep_fp32"):
        assert effective_options({key: hostile})


def test_hashes_are_texts_and_never_numbers():
    """The hashes 12e4567 and 12e5678 are both infinite as numbers."""
    key = f"{ENVIRONMENT}model_source"
    one, other = (RunIdentity({}, {key: text}) for text in ("12e4567890123456", "12e5678901234567"))
    assert differences(one, other, {Role.CODE}) == [(key, "12e4567890123456", "12e5678901234567")]
    assert not differences(one, RunIdentity({}, {}), {Role.CODE})  # not known of the other
