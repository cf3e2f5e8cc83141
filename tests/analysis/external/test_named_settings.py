"""`--seed`, `--ignore`, `--group-by` and `--split-by` find each setting that a list of settings shows."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.external import FULL, several
from support.log_templates import PROGRAMS, write, write_logs

from ampcompare import analyse_runs, load_runs
from ampcompare.errors import UserError
from ampcompare.runs import RunRecord
from ampcompare.runs.system_metrics import MachineFacts

ARMS: dict[str, Any] = {
    "group_by": ["trainer.precision"],
    "baseline": FULL,
    "metric": "val_acc:max:fraction",
}
LONG = "trainer.init_args.callbacks.early_stopping.options.random_generator.seed_of_run"


def nested(key: str, value: Any) -> dict[str, Any]:
    for part in reversed(key.split(".")):
        value = {part: value}
    return value


def seeded(key: str) -> list[RunRecord]:
    """Return runs with the seed under a key only: in the config, or as a fact of the machine."""
    runs = []
    for run in several():
        config = {name: value for name, value in run.config.items() if name != "seed"}
        seed = run.option("seed")
        if key.startswith("environment."):
            facts = run.machine.facts | {key.removeprefix("environment."): str(seed)}
            runs.append(replace(run, config=config, machine=MachineFacts(facts)))
            continue
        tree = nested(key, seed)
        tree = {name: {**config.get(name, {}), **value} if isinstance(value, dict) else value
                for name, value in tree.items()}  # fmt: skip
        runs.append(replace(run, config=config | tree))
    return runs


@pytest.mark.parametrize("key", ["trainer.fold", "environment.cpu_count", LONG])
def test_the_seed_pairs_runs_whatever_setting_it_is(key: str):
    runs = seeded(key)
    unpaired = analyse_runs(runs, **ARMS)
    assert not unpaired.comparisons[0].estimates["quality"].is_paired
    (doubt,) = (line for line in unpaired.caveats if "also differ in" in line)
    shown = next(part for part in doubt.partition(" differ in ")[2].split(", ") if part[:4] in key)
    name = shown.partition(" (")[0]
    assert name == key or name.endswith("…")
    for named in (name, key):
        analysis = analyse_runs(runs, **ARMS, seed=named)
        assert analysis.comparisons[0].estimates["quality"].is_paired
        assert not any(f"differ in {name}" in line for line in analysis.caveats)


@pytest.mark.parametrize("key", ["environment.python", LONG])
@pytest.mark.parametrize("option", ["ignore", "split_by"])
def test_other_options_find_the_listed_settings_too(key: str, option: str):
    runs = seeded(key)
    analysis = analyse_runs(runs, **ARMS, **{option: [key]})
    assert len(analysis.groups) == (2 if option == "ignore" else 6)


def test_a_constant_column_of_a_csv_file_is_its_seed(tmp_path: Path):
    """`seed` needs no option; a column of another name does. The differences by seed are 0.1, 0.2 and 0.3."""
    for arm, gain in (("a", 0.0), ("b", 1.0)):
        for number in (3, 1, 2):
            rows = [f"{n},{number},100{number},{0.5 + number / 7 + gain * number / 10}" for n in (1, 2)]
            name = f"{7 - number if arm == 'a' else number}.csv"  # their order is another one
            write(tmp_path / arm / name, "\n".join(["epoch,seed,trial,acc", *rows]))
    runs = load_runs([f"{arm}={tmp_path / arm}" for arm in "ab"])
    for options in ({}, {"seed": "trial"}):
        estimate = analyse_runs(runs, metric="acc:max", **options).comparison("b").estimates["quality"]
        assert estimate.is_paired
        assert estimate.value == pytest.approx(0.2)
        assert estimate.high - estimate.low == pytest.approx(2 * 4.302653 * 0.1 / 3**0.5, rel=1e-4)
    with pytest.raises(UserError, match=r"--seed 'epoch': no setting, its column has 1 and 2 in one run"):
        analyse_runs(runs, metric="acc:max", seed="epoch")


def test_a_value_in_the_first_row_alone_is_a_setting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """mmcv writes the seed into the first row of its log."""
    monkeypatch.chdir(tmp_path)
    runs = load_runs(write_logs(PROGRAMS["mmcv"]))
    estimate = analyse_runs(runs, metric="bbox_mAP:max").comparison("amp").estimates["quality"]
    assert estimate.is_paired
    assert estimate.value == pytest.approx(0.05)
