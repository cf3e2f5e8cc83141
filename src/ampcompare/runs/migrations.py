"""Convert options in records of version 0.2, and in the records of docs/results, to those of now.

In 0.2 TF32 was the option `tf32` of the backend `none`. The published records of 2026-11-22 have options that
were removed, all with values of no effect. If such an option changed what a backend is, the record is from
before 0.2 and cannot be compared under the backend's name: `load_runs` leaves it out.
"""

from collections.abc import Mapping
from typing import Any

from ampcompare.runs.nested import lookup

PLAIN = "none"
TF32 = "tf32"
DTYPE = "precision.dtype"
ENABLED = "precision.enabled"
# These backends computed in DTYPE; the others had their own dtype.
BACKENDS_WITH_DTYPE = ("native", "apex_o1", "apex_o2", "fp16")
# Removed options, with the value that has no effect. Other values stay and distinguish runs.
REMOVED_OPTIONS: Mapping[str, Any] = {
    "fuse": False,
    ENABLED: True,
    "precision.growth_factor": 2.0,
    "precision.backoff_factor": 0.5,
    "precision.min_scale_warning": 1.0,
    "eval.tf32": None,
}


def migrate_config(config: dict[str, Any]) -> dict[str, Any]:
    """Return a run's config, its keys nested or flat, as this version would record it."""
    backend = config.get("backend")
    if not isinstance(backend, str):
        return config
    removed = dict(REMOVED_OPTIONS)
    removed[DTYPE] = "float16" if backend in BACKENDS_WITH_DTYPE else lookup(config, DTYPE)
    if backend == PLAIN and config.get("tf32") is True:
        backend = TF32
        removed["tf32"] = True
    options: dict[str, Any] = {}
    for key, value in _without(config, "", removed).items():
        if isinstance(value, dict) and value:
            value = _without(value, f"{key}.", removed)
            if not value:  # the group has become empty
                continue
        options[key] = value
    return options | {"backend": backend}


def reason_unreadable(config: Mapping[str, Any], environment: Mapping[str, Any]) -> str:
    """Return why a run is left out, "" for any other run.

    Args:
        config: The migrated config of the run.
        environment: Empty for a run of another program, which is never left out.
    """
    if "recorder" in config or not environment:  # the config of a user's own loop
        return ""
    backend = config.get("backend")
    for key, applies in ((DTYPE, backend in BACKENDS_WITH_DTYPE), (ENABLED, backend != PLAIN)):
        value = lookup(config, key) if applies else None
        if value is not None:
            return (
                f"{key}={value} changes what backend={backend} is; "
                "records of versions before 0.2 are not read"
            )
    return ""


def _without(options: dict[str, Any], prefix: str, removed: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options without those that have the value of a removed option."""
    kept = {}
    for key, value in options.items():
        name = f"{prefix}{key}"
        if name not in removed or value != removed[name]:
            kept[key] = value
    return kept
