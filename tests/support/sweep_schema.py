"""W&B's own schema of a sweep: which keys there are, and that there are no others."""

from __future__ import annotations

from typing import Any

from ampcompare.sweeps.distributions import DISTRIBUTIONS

TEXT, NUMBER, ANY = {"type": "string"}, {"type": "number"}, {}


def closed(*required: str, **properties: Any) -> dict[str, Any]:
    return {
        "type": "object",
        "required": list(required),
        "properties": properties,
        "additionalProperties": False,
        "minProperties": 1,
    }


PARAMETER = closed(
    parameters={"$ref": "#/definitions/parameters"},
    values={"type": "array", "minItems": 1},
    probabilities={"type": "array", "items": {"type": "number", "minimum": 0}},
    distribution={"enum": [*DISTRIBUTIONS]},
    **dict.fromkeys(("value", "min", "max", "mu", "sigma", "q", "a", "b"), ANY),
)
PARAMETERS = {
    "type": "object",
    "minProperties": 1,
    "propertyNames": {"pattern": "^[A-Za-z_][A-Za-z0-9_.-]*$"},
    "additionalProperties": PARAMETER,
}
METRIC = closed("name", name=TEXT, goal={"enum": ["minimize", "maximize"]}, target=NUMBER)
EARLY = dict.fromkeys(("min_iter", "max_iter", "s", "eta"), NUMBER)
SCHEMA = {"definitions": {"parameters": PARAMETERS}} | closed(
    "method",
    **dict.fromkeys(("name", "description", "program", "project", "entity"), TEXT),
    method={"enum": ["grid", "random", "bayes"]},
    command={"type": "array"},
    run_cap={"type": "integer", "minimum": 1},
    parameters={"$ref": "#/definitions/parameters"},
    metric=METRIC,
    early_terminate=closed("type", type={"enum": ["hyperband"]}, strict={"type": "boolean"}, **EARLY),
)
