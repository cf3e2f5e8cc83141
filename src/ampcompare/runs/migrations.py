"""Options in records of version 0.2, and in the records that docs/results publishes, as those of now.

In 0.2 TF32 was the option `tf32` of the backend `none`. The published records of 2026-11-22 have options that
went, all with values of no effect. Where such an option changed what a backend is, the record is of before
0.2 and cannot be compared under the backend's name: `load_runs` leaves it out.
"""

from collections.abc import Mapping
from typing import Any

from ampcompare.runs.nested import lookup

PLAIN, TF32 = "none", "tf32"
DTYPE, ENABLED = "precision.dtype", "precision.enabled"
OF_DTYPE = ("native", "apex_o1", "apex_o2", "fp16")  # they computed in DTYPE; others had one of their own
# Options that went, with the value of no effect. Another value stays in the record and sets runs apart.
GONE: Mapping[str, Any] = {
    "fuse": False,
    ENABLED: True,
    "precision.growth_factor": 2.0,
    "precision.backoff_factor": 0.5,
    "precision.min_scale_warning": 1.0,
    "eval.tf32": None,
}


def config_now(config: dict[str, Any]) -> dict[str, Any]:
    """Return a run's config, its keys nested or flat, as this version would record it."""
    backend = config.get("backend")
    if not isinstance(backend, str):
        return config
    gone = {**GONE, DTYPE: "float16" if backend in OF_DTYPE else lookup(config, DTYPE)}
    found = {k: _without(v, f"{k}.", gone) if isinstance(v, dict) else v for k, v in config.items()}
    found = {k: v for k, v in found.items() if v or not config[k]}  # no group that has nothing left
    if backend == PLAIN and found.get("tf32") is True:
        backend, gone["tf32"] = TF32, True
    return _without(found, "", gone) | {"backend": backend}


def reason_unreadable(config: Mapping[str, Any], environment: Mapping[str, Any]) -> str:
    """Return why a run is left out, from its config as of now and its environment; "" for any other run."""
    if "recorder" in config or not environment:  # the config of somebody's own loop
        return ""
    backend = config.get("backend")
    for key, matters in ((DTYPE, backend in OF_DTYPE), (ENABLED, backend != PLAIN)):
        if matters and (value := lookup(config, key)) is not None:
            why = "such a record, of before 0.2, is not read"
            return f"{key}={value} changes what backend={backend} is; {why}"
    return ""


def _without(options: dict[str, Any], prefix: str, gone: Mapping[str, Any]) -> dict[str, Any]:
    return {k: v for k, v in options.items() if f"{prefix}{k}" not in gone or v != gone[f"{prefix}{k}"]}
