"""W&B's contract: every sweep file that its JSON schema accepts is taken, or refused in lines with a reason.

`wandb_schema/schema.json` is `sweeps/config/schema.json` of W&B's package `sweeps` 0.3.0, unchanged (MIT, see
`wandb_schema/LICENSE`). The files are made from it, so that each is one that it accepts.
"""

import json
import math
from collections.abc import Callable, Mapping
from itertools import islice, pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, seed, settings
from hypothesis import strategies as st

from ampcompare.errors import UserError
from ampcompare.sweeps.prepare import prepare_sweep
from ampcompare.sweeps.samplers import run_at
from ampcompare.sweeps.sweep import Sweep
from ampcompare.sweeps.sweep_file import read_sweep, sweep_of
from ampcompare.sweeps.sweep_identity import definition, seed_of

SCHEMA = json.loads((Path(__file__).parent / "wandb_schema" / "schema.json").read_text())
# Control characters and halves of surrogate pairs are no YAML; tests/test_wrong_uses.py has such files.
TEXT = st.text(st.characters(exclude_categories=("Cc", "Cs")), max_size=8)
FLOATS = st.floats(allow_nan=False, allow_infinity=False)
PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers() | FLOATS | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=5,
)
NUMBERS = st.one_of(
    st.sampled_from([0, 1, 2, 3, 5, 27, 0.5, 1.0, 1.5, 2.0, 3.0, 1e-3, 10**400, 1e300, -1, 5e-324]),
    st.integers(-10, 1000),
    FLOATS,
)
STRINGS = st.sampled_from(["train.py", "ampcompare", "loss", "${args}", "", "é", "../x"]) | TEXT
OPTION_NAMES = st.sampled_from(["backend", "seed", "optimizer.lr", "plan", "a", "b", "a.b"])


def of_schema(schema: Mapping[str, Any]) -> st.SearchStrategy[Any]:
    """Return values that a JSON schema accepts, for the keywords that W&B's schema uses."""
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        return st.deferred(lambda: of_schema(SCHEMA["definitions"][name]))
    if "enum" in schema:
        return st.sampled_from(schema["enum"])
    if "properties" in schema or schema.get("type") == "object":
        return of_object(schema)
    if options := schema.get("anyOf", schema.get("oneOf")):
        return st.one_of([of_schema(option) for option in options])
    kind = schema.get("type")
    if kind == "array":
        items = of_schema(schema["items"]) if "items" in schema else PLAIN
        return st.lists(items, min_size=schema.get("minItems", 0), max_size=4)
    if kind in ("number", "integer"):
        low, above = schema.get("minimum", -math.inf), schema.get("exclusiveMinimum", -math.inf)
        within = NUMBERS.filter(lambda number: number >= low and number > above)
        return within if kind == "number" else within.filter(lambda number: number == number // 1)
    return {"string": STRINGS, "boolean": st.booleans()}.get(kind, PLAIN)


def of_object(schema: Mapping[str, Any]) -> st.SearchStrategy[dict[str, Any]]:
    inner = schema.get("additionalProperties")
    if isinstance(inner, Mapping):
        pattern = schema["propertyNames"]["pattern"]
        names = OPTION_NAMES | st.from_regex(pattern, fullmatch=True).filter(lambda name: len(name) < 30)
        return st.dictionaries(names, of_schema(inner), min_size=schema.get("minProperties", 0), max_size=4)
    parts = {name: of_schema(part) for name, part in schema.get("properties", {}).items()}

    def with_keys(required: list[str]) -> st.SearchStrategy[dict[str, Any]]:
        optional = {name: part for name, part in parts.items() if name not in required}
        made = st.fixed_dictionaries({name: parts[name] for name in required}, optional=optional)
        return made.map(lambda found: without_dependents(schema, found))

    # Of `anyOf` beside properties W&B's schema has lists of required keys alone.
    choices = [option["required"] for option in schema.get("anyOf", [{"required": []}])]
    required = schema.get("required", [])
    return st.one_of([with_keys([*dict.fromkeys([*required, *choice])]) for choice in choices])


def without_dependents(schema: Mapping[str, Any], found: dict[str, Any]) -> dict[str, Any]:
    """Leave out what may only be there with other keys."""
    rules = schema.get("dependencies", {})
    return {key: part for key, part in found.items() if set(rules.get(key, ())) <= found.keys()}


# A file in which every part is free would be refused for want of a program, metric or parameters.
SMALL: dict[str, Any] = {
    "method": "random",
    "program": "train.py",
    "metric": {"name": "loss"},
    "parameters": {"x": {"values": [1, 2]}},
}
OF_PARTS = st.one_of(
    [
        st.builds(lambda name, part: SMALL | {name: part}, st.just(name), of_schema(part))
        for name, part in SCHEMA["properties"].items()
    ]
)
GRIDS = of_schema(SCHEMA["definitions"]["parameters"]).map(
    lambda parameters: SMALL | {"method": "grid", "parameters": parameters}
)


@pytest.mark.parametrize("files", [OF_PARTS, GRIDS], ids=["part", "grid"])
def test_a_file_of_the_schema_is_taken_or_refused_in_lines(
    files: st.SearchStrategy[dict[str, Any]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)
    Path("train.py").touch()
    taken = []

    @seed(52)
    @settings(max_examples=50, suppress_health_check=list(HealthCheck))
    @given(files)
    def try_one(content: dict[str, Any]) -> None:
        Path("sweep.yaml").write_text(json.dumps(content, ensure_ascii=False), encoding="utf-8")
        for read in (lambda: read_sweep("sweep.yaml"), lambda: sweep_of(Path("sweep.yaml"), content)):
            lines = refusal_of(read)
            assert all(line and line.isprintable() and "no such key" not in line for line in lines), lines
            taken.append(not lines)

    try_one()
    assert any(taken)


def refusal_of(read: Callable[[], Sweep]) -> list[str]:
    """Return why a sweep cannot be read or run, in lines; no line where it can."""
    try:
        use(read())
    except UserError as problem:
        return problem.lines
    return []


def use(sweep: Sweep) -> None:
    """Do with a sweep what is done before its first run, and see that its values are values."""
    ready = prepare_sweep(sweep, []).sweep
    if ready.is_grid:
        values = [point.parameters for point in islice(ready.points, 3)]
    elif not ready.learns:
        began = seed_of(ready, definition(ready, []))
        values = [run_at(ready, began, None, index).parameters for index in range(3)]
    else:
        values = []
    json.dumps(values, allow_nan=False)
    if ready.hyperband:
        bands = ready.hyperband.bands
        assert bands[0] >= 1
        assert all(band < later for band, later in pairwise(bands))
