"""PyTorch's switches for reductions in 16 bits: recorded, and a difference between runs."""

from pathlib import Path
from typing import Any

import pytest
from support.fakes import make
from support.training import play

from ampcompare import analyse_runs, load_runs, metrics
from ampcompare.system.device import current_numerics

SWITCHES = [*metrics.REDUCTION_DEFAULTS]


def test_the_defaults_are_those_of_pytorch():
    assert {key: current_numerics()[key] for key in SWITCHES} == metrics.REDUCTION_DEFAULTS


def groups_of(*values: dict[str, Any]) -> list[str]:
    """Return the display names of the groups of one run for each environment."""
    runs = []
    for seed, environment in enumerate(values):
        run = make("native", seed)
        run.summary["environment"] = run.environment | environment  # type: ignore[operator]
        runs.append(run)
    return [group.display_name for group in analyse_runs(runs).groups]


@pytest.mark.parametrize("key", SWITCHES)
def test_runs_that_differ_in_a_switch_are_not_pooled(key: str):
    default = metrics.REDUCTION_DEFAULTS[key]
    assert len(groups_of({key: default}, {key: default})) == 1
    assert len(groups_of({key: default}, {key: not default})) == 2
    # A record from before has no value: the default.
    assert len(groups_of({}, {key: default})) == 1
    assert len(groups_of({}, {key: not default})) == 2


@pytest.mark.slow
def test_a_run_whose_network_sets_a_switch_has_it_in_its_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)
    line = "torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction = False"
    layers = "nn.Sequential(nn.Flatten(), nn.Linear(3072, num_classes))"
    network = (
        f"import torch\nfrom torch import nn\n\ndef build(num_classes=10):\n    {line}\n    return {layers}\n"
    )
    Path("net.py").write_text(network)
    play("model.name=./net.py:build", "epochs=1")
    (run,) = load_runs(["runs"])
    assert run.environment["allow_fp16_reduced_precision_reduction"] is False
    assert run.environment["allow_bf16_reduced_precision_reduction"] is True
