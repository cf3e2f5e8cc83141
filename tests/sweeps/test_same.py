"""Points of a grid that come to the same run are one, and those that cannot run are none; both are said."""

from __future__ import annotations

from collections import Counter

import pytest
import yaml

from ampcompare.sweeps.file import read_sweep
from ampcompare.sweeps.prepare import prepared

KEY = "precision.loss_scale"
SCALES = ["dynamic", 128]


@pytest.fixture
def ready(tmp_path):
    """A sweep of our training with these parameters, made ready."""

    def made(**parameters):
        file = tmp_path / "mine.yaml"
        command = ["${interpreter}", "-m", "${program}", "run", "${args_no_hyphens}"]
        tree = {KEY if key == "scales" else key: {"values": values} for key, values in parameters.items()}
        content = {"program": "ampcompare", "method": "grid", "command": command, "parameters": tree}
        file.write_text(yaml.safe_dump(content, sort_keys=False))
        return prepared(read_sweep(file), [])

    return made


def runs_of(found):
    """(backend, scale, seed) of every run, in order."""
    points = [point.parameters for point in found.sweep.points]
    return [(p["backend"], p.get(KEY), p.get("seed")) for p in points]


def test_a_backend_without_a_scale_is_one_run_whatever_the_scale(ready):
    found = ready(backend=["none", "native"], scales=SCALES, seed=[1, 2, 3])
    assert found.sweep.total() == 9
    assert Counter((b, s) for b, _, s in runs_of(found)) == {
        (backend, seed): count for backend, count in (("none", 1), ("native", 2)) for seed in (1, 2, 3)
    }
    assert found.said == ("12 points, 9 different runs: those that train the same are one",)


def test_what_cannot_run_is_left_out_and_said_in_one_line(ready):
    found = ready(backend=["apex_o2", "none", "native_bf16"], scales=SCALES, seed=[1, 2])
    kinds = {("none", "dynamic"), ("apex_o2", "dynamic"), ("apex_o2", 128), ("native_bf16", "dynamic")}
    assert set(runs_of(found)) == {(*kind, seed) for kind in kinds for seed in (1, 2)}
    counted, left_out = found.said
    assert counted.startswith("12 points, 8 different runs: ")
    why = "precision.loss_scale=128: backend=native_bf16 does not scale the loss"
    assert left_out == f"left out, as they cannot run: {why}"


def test_a_block_is_a_seed_with_every_run_in_it(ready):
    """So that the baseline which all scales share does not always run before the later ones."""
    points = ready(backend=["none", "native", "apex_o2"], scales=SCALES, seed=[*range(40)]).sweep.points
    assert [p.block for p in points] == [seed for seed in range(40) for _ in range(5)]
    assert [p.parameters["seed"] for p in points] == [p.block for p in points]
    places = Counter(i % 5 for i, p in enumerate(points) if p.parameters["backend"] == "none")
    assert len(places) == 5
    assert max(places.values()) < 20
