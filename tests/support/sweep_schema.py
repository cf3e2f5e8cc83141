"""W&B's own schema of a sweep."""

from __future__ import annotations

from ampcompare.sweeps.distributions import DISTRIBUTIONS

# What W&B's published schema of a sweep says about keys: which there are, and that there are no others.
_PARAMETER = {
    "oneOf": [
        {
            "type": "object",
            "properties": {"parameters": {"$ref": "#/definitions/parameters"}},
            "required": ["parameters"],
            "additionalProperties": False,
        },
        {
            "type": "object",
            "properties": {
                **{key: {} for key in ("value", "min", "max", "mu", "sigma", "q", "a", "b")},
                "values": {"type": "array", "minItems": 1},
                "probabilities": {"type": "array", "items": {"type": "number", "minimum": 0}},
                "distribution": {"enum": [*DISTRIBUTIONS]},
            },
            "minProperties": 1,
            "additionalProperties": False,
        },
    ]
}
_TEXT, _NUMBER = {"type": "string"}, {"type": "number"}
_METRIC = {"name": _TEXT, "goal": {"enum": ["minimize", "maximize"]}, "target": _NUMBER}
_EARLY = {"type": {"enum": ["hyperband"]}, "strict": {"type": "boolean"}}
_EARLY |= dict.fromkeys(("min_iter", "max_iter", "s", "eta"), _NUMBER)
SCHEMA = {
    "definitions": {
        "parameters": {
            "type": "object",
            "minProperties": 1,
            "propertyNames": {"pattern": "^[A-Za-z_][A-Za-z0-9_.-]*$"},
            "additionalProperties": _PARAMETER,
        }
    },
    "type": "object",
    "required": ["method"],
    "additionalProperties": False,
    "properties": {
        **dict.fromkeys(("name", "description", "program", "project", "entity"), _TEXT),
        "method": {"enum": ["grid", "random", "bayes"]},
        "command": {"type": "array"},
        "run_cap": {"type": "integer", "minimum": 1},
        "parameters": {"$ref": "#/definitions/parameters"},
        "metric": {
            "type": "object",
            "properties": {
                **_METRIC,
                "impute": {"enum": ["latest", "best", "worst"]},
                "impute_while_running": {"enum": ["latest", "best", "worst", "false"]},
            },
            "required": ["name"],
            "additionalProperties": False,
        },
        "early_terminate": {
            "type": "object",
            "properties": _EARLY,
            "required": ["type"],
            "additionalProperties": False,
        },
    },
}
