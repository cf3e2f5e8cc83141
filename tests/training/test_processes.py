"""Two processes on the CPU train what one does with the whole batch."""

import json
import sys
import time
from pathlib import Path

import pytest
import torch
from support.quick import QUICK, ROOT
from support.torchrun import torchrun
from support.training import StopWhen, fit_of, timeless
from torch import nn

from ampcompare.config.load import load_config
from ampcompare.runtime.signals import exit_process
from ampcompare.system.distributed import connect_processes

WORDS = (
    *QUICK,
    # the last batch of an epoch is short and of an odd size: 32, 32, 26; and 13 for each
    "data.train_limit=90",
    "data.test_limit=33",
    "batch_size=32",
    "eval.batch_size=8",  # the last evaluation batch has one image: none for the second process
    "epochs=2",
    "log.every=1",
    "diagnostics.every=null",  # activations are those of a process
    "recipe=reference",
    "optimizer.momentum=0.9",
)
CASES = {
    **{
        name: (f"backend={name}", "precision.init_scale=1024")
        for name in ("none", "apex_o1", "apex_o2", "bf16_sr")
    },
    "accumulated": (
        "backend=native",
        "training.accumulate=2",
        "precision.init_scale=1024",
        "training.clip_norm=0.5",
    ),
    # Overflows at first, in the images of one process alone.
    **{
        f"{name} overflow": (f"backend={name}", "precision.init_scale=16777216")
        for name in ("native", "apex_o1")
    },
    "not finite": ("backend=none", "optimizer.lr=1e30", "training.on_nan=continue"),
}


def without_batch_norm(num_classes: int) -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, stride=4), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 64, num_classes)
    )


def main(folder: Path) -> None:
    """Train each case briefly and write the results as JSON, in each process that torchrun starts."""
    found = {}
    with connect_processes("cpu") as world:
        for case, words in CASES.items():
            config = load_config(None, [*WORDS, f"model.name={__file__}:without_batch_norm", *words])
            made, rows = fit_of(config, torch.device("cpu"), world=world)
            made.run()
            weights = torch.cat([p.detach().flatten() for p in made.trainer.model.parameters()])
            found[case] = {"rows": rows, "weights": weights.double().sum().item()}
    (folder / f"rank{world.rank}.json").write_text(
        json.dumps(found, default=lambda histogram: histogram.counts)
    )


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict, dict, dict]:
    """Return the results of one process, and those of each of two."""
    alone, together = tmp_path_factory.mktemp("alone"), tmp_path_factory.mktemp("together")
    main(alone)
    torchrun(2, __file__, str(together))
    one, first, second = (
        json.loads(path.read_text())
        for path in (alone / "rank0.json", together / "rank0.json", together / "rank1.json")
    )
    return one, first, second


COMPARED = "train/loss train/accuracy eval/loss eval/accuracy amp/scale_factor amp/skipped_steps".split()


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_two_processes_log_the_same_as_one(runs: tuple[dict, dict, dict], case: str):
    """All three have the same rows, within rounding, and both processes the same numbers and weights."""
    one, first, second = (found[case] for found in runs)
    assert repr(first["weights"]) == repr(second["weights"])
    assert repr(timeless(first["rows"])) == repr(timeless(second["rows"]))
    if case == "not finite":  # of what follows from nan nothing is said
        return
    for key in COMPARED:
        ours, truth = ([row[key] for row in found["rows"] if key in row] for found in (first, one))
        tolerance = 1e-5 if case == "none" else 2e-2
        absolute = 0.04 if "accuracy" in key else 0.0  # a single image
        assert ours == pytest.approx(truth, rel=tolerance, abs=absolute), key
    assert ("overflow" in case) <= any(row.get("amp/skipped_steps") for row in first["rows"])


STOPS_AT = 5


def stop(folder: Path) -> None:
    """Ask only process 1 to stop during a step, with quick and slow steps; torchrun starts this."""
    found = {}
    with connect_processes("cpu") as world:
        for case, seconds in {"quick": 0.0, "slow": 0.3}.items():
            steps = []

            def on_step(step: int, seconds: float = seconds, steps: list[int] = steps) -> None:
                steps.append(step)
                time.sleep(seconds)  # belongs to the step that follows

            def is_asked(steps: list[int] = steps) -> bool:
                return world.rank == 1 and len(steps) + 1 >= STOPS_AT

            words = ("epochs=1", "data.train_limit=640", "log.every=100")
            on = {"on_step": on_step, "stop": StopWhen(is_asked), "world": world}
            made, _ = fit_of(load_config(None, [*WORDS, *words]), torch.device("cpu"), **on)
            made.run()
            found[case] = {"steps": steps, "stopped": made.stopped}
    (folder / f"rank{world.rank}.json").write_text(json.dumps(found))


@pytest.mark.slow
def test_a_request_to_one_process_stops_all_at_one_step_the_next_one_at_the_latest(tmp_path: Path):
    """In the step itself where steps are slow, so that two of them are not too many for a batch system."""
    torchrun(2, __file__, str(tmp_path), "stop")
    first, second = (json.loads((tmp_path / f"rank{rank}.json").read_text()) for rank in (0, 1))
    assert first == second
    assert first["quick"]["stopped"]
    assert first["quick"]["steps"][-1] in (STOPS_AT, STOPS_AT + 1)
    assert first["slow"] == {"steps": [*range(1, STOPS_AT + 1)], "stopped": True}


UNUSED = """
from torch import nn


class Spare(nn.Module):
    def __init__(self, classes):
        super().__init__()
        self.used, self.spare = nn.Linear(3072, classes), nn.Linear(2, 2)

    def forward(self, images):
        return self.used(images.flatten(1))


def build(num_classes):
    return Spare(num_classes)
"""


@pytest.mark.slow
def test_unused_parameters_are_named_and_can_be_allowed(tmp_path: Path):
    (tmp_path / "net.py").write_text(UNUSED)
    network = f"model.name={tmp_path / 'net.py'}:build"
    words = (*QUICK, network, "backend=apex_o2", f"output_dir={tmp_path}", "epochs=1")
    done = torchrun(2, str(ROOT / "run_experiment.py"), *words, check=False)
    (said,) = (line for line in done.stdout.splitlines() if line.startswith("error: "))
    assert "spare.weight, spare.bias;" in said
    assert "training.find_unused_parameters=true" in said
    assert done.returncode != 0
    torchrun(2, str(ROOT / "run_experiment.py"), *words, "training.find_unused_parameters=true")


if __name__ == "__main__":
    torch.set_num_threads(1)
    (stop if sys.argv[2:] == ["stop"] else main)(Path(sys.argv[1]))
    exit_process(0)
