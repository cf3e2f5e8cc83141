"""The points of sweeps, frozen: grid orders, random draws, points that are one run.

A sweep that goes on after an update has to find its runs where they were. So what follows from a sweep file
is compared with the files in `golden/`, which were derived before the driver of sweeps was rebuilt. A failure
lists every difference. Floats are kept with nine significant digits: the last digits of `exp` and of SciPy's
quantile functions may differ between machines.
"""

import dataclasses
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml
from support.contract import check
from support.quick import ROOT

from ampcompare.sweeps.prepare import SweepOptions, prepare_sweep
from ampcompare.sweeps.samplers import run_at
from ampcompare.sweeps.sweep import Hyperband, Point, Sweep
from ampcompare.sweeps.sweep_file import read_sweep, sweep_of
from ampcompare.sweeps.sweep_identity import definition, seed_of

GOLDEN = Path(__file__).parent / "golden"
SHIPPED = sorted((ROOT / "sweeps").glob("*.yaml"))
GRIDS = [path for path in SHIPPED if "method: grid" in path.read_text()]
OURS = {"program": "ampcompare", "command": ["ampcompare", "run", "${args_no_hyphens}"], "method": "grid"}

SEARCH = yaml.safe_load((GOLDEN / "distributions_sweep.yaml").read_text())


def draw(sweep: Sweep, index: int, words: Sequence[str] = ()) -> dict[str, Any]:
    """Return the parameters of a run of a random search."""
    return run_at(sweep, seed_of(sweep, definition(sweep, words)), None, index).parameters


def ready(sweep: Sweep, words: Sequence[str] = (), control: str | None = None) -> Sweep:
    """Return the sweep with its control, and with points that train the same as one run."""
    return prepare_sweep(sweep, words, SweepOptions(control=control)).sweep


def combined(sweep: Sweep, words: Sequence[str] = ()) -> dict[str, Any]:
    """Return which points are runs, and what is printed about it."""
    found = prepare_sweep(sweep, words)
    cells = found.sweep.distinct_points
    return {
        "keys": list(cells.keys) if cells else None,
        "kept": [rendered(numbers) for numbers in sorted(cells.combinations)] if cells else None,
        "notes": list(found.messages),
    }


def line_of(point: Point) -> str:
    """Return a point as one line: index, block, position of a control run, parameters."""
    block = "-" if point.block is None else point.block
    return f"{point.index} block {block} {point.arm or 'main'} {rendered(point.parameters)}"


def rendered(value: Any) -> str:
    """Return JSON in which floats have nine significant digits; 1, 1.0, true and "1" stay different."""
    return json.dumps(rounded(value), ensure_ascii=False)


def rounded(value: Any) -> Any:
    if isinstance(value, float):
        return float(f"{value:.9g}")
    if isinstance(value, Mapping):
        return {key: rounded(inner) for key, inner in value.items()}
    return [rounded(inner) for inner in value] if isinstance(value, list | tuple) else value


def lines(sweep: Sweep) -> list[str]:
    return [line_of(point) for point in sweep.points]


def with_seeds(sweep: Sweep) -> Sweep:
    """Return the sweep with two groups of added seeds."""
    return dataclasses.replace(sweep, added=((301, 302), (303,)))


def grid(name: str, **values: Sequence[Any]) -> Sweep:
    """Return a grid of our training over these values."""
    parameters = {key.replace("__", "."): {"values": list(listed)} for key, listed in values.items()}
    return sweep_of(Path(f"{name}.yaml"), OURS | {"parameters": parameters})


def grid_orders() -> Iterator[tuple[str, Any]]:
    hyperband = Hyperband(type="hyperband", min_iter=3)
    for path in GRIDS:
        sweep, name = read_sweep(path), path.stem
        plain, bookends = ready(sweep), ready(sweep, control="bookends")
        yield name, lines(plain)
        yield f"{name}, bookends", lines(bookends)
        if sweep.seed:
            yield f"{name}, added seeds", lines(with_seeds(plain))
            yield f"{name}, bookends, added seeds", lines(with_seeds(bookends))
            capped = dataclasses.replace(with_seeds(bookends), run_cap=len(bookends.points) + 7)
            yield f"{name}, bookends, added seeds, run_cap", lines(capped)
        yield f"{name}, hyperband", lines(dataclasses.replace(plain, hyperband=hyperband))
    words = ["backend=[none,native_bf16]", "seed=[1,2]"]
    yield "compare_backends, words", lines(ready(read_sweep("compare_backends", words), words))
    renamed = dataclasses.replace(read_sweep("compare_backends"), name="näme")
    yield "compare_backends, renamed", lines(ready(renamed))
    scales = grid("scales", precision__loss_scale=["dynamic", 128], seed=[1, 2], backend=["none", "native"])
    yield "scales", lines(ready(scales))
    yield "scales, bookends, added seeds", lines(with_seeds(ready(scales, control="bookends")))
    long = grid("long", data__train_limit=range(1, 301))
    yield "more values than a block has", [line_of(point) for point in ready(long).points[:5]]


def test_points_of_a_grid(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(ROOT)
    freezes("grids", dict(grid_orders()), tmp_path)


def random_search(name: str, **changes: Any) -> Sweep:
    return sweep_of(Path(f"{name}.yaml"), SEARCH | changes)


def test_draws_of_a_random_search(tmp_path: Path):
    sweep = random_search("draws")
    runs = [draw(sweep, index) for index in range(200)]
    draws = {
        key: [rendered([run[key] for run in runs[i : i + 10]]) for i in range(0, 200, 10)]
        for key in SEARCH["parameters"]
        if key != "constant"
    }
    assert all(run["constant"] == [1, 2.5, "x"] for run in runs)
    nested = {
        "o": {
            "parameters": {"lr": {"min": 0.0, "max": 1.0}, "d": {"parameters": {"e": {"min": 1, "max": 9}}}}
        }
    }
    rate = yaml.safe_load((ROOT / "sweeps" / "learning_rate.yaml").read_text()) | {"method": "random"}
    others = {
        "another name": random_search("other"),
        "another metric": random_search("draws", metric={"name": "loss"}),
        "nested": random_search("draws", parameters=nested),
        "learning_rate": sweep_of(Path("learning_rate.yaml"), rate),
    }
    now = {
        "seed": seed_of(sweep, definition(sweep, ["seed=3", "epochs=2"])),
        "distributions": draws,
        "with words": [
            rendered([*draw(sweep, index, ["seed=3", "epochs=2"]).values()]) for index in range(5)
        ],
    }
    now |= {key: [rendered(draw(other, n)) for n in range(5)] for key, other in others.items()}
    freezes("draws", now, tmp_path)


def test_points_that_are_one_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(ROOT)
    backends = ["none", "tf32", "native", "apex_o1", "apex_o2", "fp16", "native_bf16", "bf16", "bf16_sr"]
    dynamic = {"precision__loss_scale": ["dynamic", 1, 128]}
    sweeps = {path.stem: read_sweep(path) for path in SHIPPED}
    sweeps |= {
        "all backends x loss scales": grid("a", backend=backends, seed=[1, 2], **dynamic),
        "loss scales x backends": grid("b", **dynamic, backend=backends[2:5]),
        "loss scales alone": grid("c", **dynamic, seed=[1, 2, 3]),
        "initial scales": grid("d", backend=["none", "native"], precision__init_scale=[1024.0, 65536.0]),
        "modules in fp32": grid("e", backend=["none", "fp16"], precision__keep_fp32=[None, ["*.bn3"]]),
        "bf16 without a scale": grid(
            "f", backend=["none", "native_bf16"], precision__loss_scale=["dynamic", 8]
        ),
        "too many to try": grid(
            "g", backend=["none", "native"], precision__init_scale=[2.0**n for n in range(120)]
        ),
    }
    now = {name: combined(sweep) for name, sweep in sweeps.items()}
    now["on a server"] = combined(dataclasses.replace(sweeps["all backends x loss scales"], on_server=True))
    now["words decide"] = combined(sweeps["initial scales"], ["precision.loss_scale=dynamic", "epochs=2"])
    freezes("combined points", now, tmp_path)


def freezes(part: str, now: Any, folder: Path) -> None:
    """Compare a golden file with what the code gives now."""
    check(GOLDEN / f"{part.replace(' ', '_')}.yaml", now, folder)
