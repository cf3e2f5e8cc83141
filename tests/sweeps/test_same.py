"""Points of a grid that come to the same run are one, and those that cannot run are none; both are said."""

from __future__ import annotations

import dataclasses
from collections import Counter

import pytest
import yaml

from ampcompare.sweeps.check import same_runs
from ampcompare.sweeps.file import read_sweep

KEY = "precision.loss_scale"
SCALES = ["dynamic", 128]


@pytest.fixture
def sweep_of(tmp_path):
    """A sweep of our training with these parameters, the file's content beside them, words behind it."""

    def made(parameters, words=(), *, control=False, **content):
        file = tmp_path / "mine.yaml"
        command = ["${interpreter}", "-m", "${program}", "run", "${args_no_hyphens}"]
        tree = {key: spec if isinstance(spec, dict) else {"values": spec} for key, spec in parameters.items()}
        whole = {"program": "ampcompare", "method": "grid", "command": command, "parameters": tree} | content
        file.write_text(yaml.safe_dump(whole, sort_keys=False))
        sweep = dataclasses.replace(read_sweep(file), control=control)
        return dataclasses.replace(sweep, cells=same_runs(sweep, words)[0])

    return made


def runs_of(sweep):
    """(backend, scale, seed) of every run, in order."""
    points = [sweep.points[i] for i in range(sweep.total())]
    return [(p.parameters["backend"], p.parameters.get(KEY), p.parameters.get("seed")) for p in points]


def said(sweep, words=()):
    return same_runs(sweep, words)[1]


def test_a_backend_without_a_scale_is_one_run_whatever_the_scale(sweep_of):
    sweep = sweep_of({"backend": ["none", "native"], KEY: SCALES, "seed": [1, 2, 3]})
    assert sweep.total() == 9
    assert Counter((b, s) for b, _, s in runs_of(sweep)) == {
        (backend, seed): count for backend, count in (("none", 1), ("native", 2)) for seed in (1, 2, 3)
    }
    assert said(sweep) == ["12 points, 9 different runs: those that train the same are one"]


def test_what_cannot_run_is_left_out_and_said_in_one_line(sweep_of):
    sweep = sweep_of({"backend": ["apex_o2", "none", "native_bf16"], KEY: SCALES, "seed": [1, 2]})
    kinds = {("none", "dynamic"), ("apex_o2", "dynamic"), ("apex_o2", 128), ("native_bf16", "dynamic")}
    assert set(runs_of(sweep)) == {(*kind, seed) for kind in kinds for seed in (1, 2)}
    counted, left_out = said(sweep)
    assert counted.startswith("12 points, 8 different runs: ")
    why = "precision.loss_scale=128: backend=native_bf16 does not scale the loss"
    assert left_out == f"left out, as they cannot run: {why}"


def test_a_block_is_a_seed_with_every_run_in_it(sweep_of):
    """So that the baseline which all scales share does not always run before the later ones."""
    backends = ["none", "native", "apex_o2"]
    sweep = sweep_of({"backend": backends, KEY: SCALES, "seed": [*range(40)]})
    points = [sweep.points[i] for i in range(sweep.total())]
    assert [p.block for p in points] == [seed for seed in range(40) for _ in range(5)]
    assert [p.parameters["seed"] for p in points] == [p.block for p in points]
    places = Counter(i % 5 for i, p in enumerate(points) if p.parameters["backend"] == "none")
    assert len(places) == 5
    assert max(places.values()) < 20
