"""`--seed`, `--ignore`, `--group-by` and `--split-by` find each setting that a list of settings shows."""

from dataclasses import replace
from typing import Any

import pytest
from support.external import FULL, several
from support.fakes import Plan, make

from ampcompare import analyse_runs
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


@pytest.mark.parametrize(
    "key", ["my_seed", "trainer.fold", "environment.python", "environment.cpu_count", LONG]
)
def test_the_seed_pairs_runs_whatever_setting_it_is(key: str):
    runs = seeded(key)
    (doubt,) = (line for line in analyse_runs(runs, **ARMS).caveats if "also differ in" in line)
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


def test_our_own_runs_are_paired_by_a_listed_fact():
    def edit(made: Plan) -> None:
        made["config"].pop("seed")
        made["summary"]["environment"] = made["summary"].get("environment", {}) | {
            "host": made["wandb"]["id"]
        }

    runs = [make(backend, seed, edit=edit) for backend in ("none", "native") for seed in (1, 2, 3)]
    with pytest.raises(UserError, match=r"--seed 'environment\.hots': no run has this setting; did you mean"):
        analyse_runs(runs, seed="environment.hots")
    assert analyse_runs(runs, seed="environment.host").groups
