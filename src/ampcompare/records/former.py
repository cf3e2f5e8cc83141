"""Options of earlier versions as those of now, so that records of runs stay readable.

A backend was once told its type (`precision.dtype`); now each type is a backend of its own. So is TF32, once
the option `tf32` of the backend `none`.
"""

from collections.abc import Mapping
from typing import Any

DTYPE, ENABLED = "precision.dtype", "precision.enabled"
PLAIN, TF32 = "none", "tf32"
IN_BF16 = {"native": "native_bf16", "apex_o1": "apex_o1_bf16"}
# What options that went had where nobody set them. Another value stays in the record and sets runs apart.
GONE = {
    "fuse": False,
    ENABLED: True,
    "precision.growth_factor": 2.0,
    "precision.backoff_factor": 0.5,
    "precision.min_scale_warning": 1.0,
    "eval.tf32": None,
}


def config_now(config: dict[str, Any], environment: Mapping[str, Any]) -> dict[str, Any]:
    """A run's config, its keys nested or flat, with the backend that it is now and without what went."""
    backend, precision = config.get("backend"), config.get("precision")
    if not isinstance(backend, str):
        return config
    inner = precision if isinstance(precision, dict) else {}
    dtype = environment.get("precision_dtype") or inner.get("dtype", config.get(DTYPE))
    enabled = inner.get("enabled", config.get(ENABLED))
    gone = GONE | {ENABLED: enabled}
    # Of a plug-in, which could have several types, one that was not its own tells runs apart.
    if environment.get("backend_type", dtype) == dtype:
        gone[DTYPE] = inner.get("dtype", config.get(DTYPE))
    found = {k: _without(v, f"{k}.", gone) if isinstance(v, dict) else v for k, v in config.items()}
    kept = {k: v for k, v in found.items() if v or not config[k]}  # no group that has nothing left
    now = IN_BF16.get(backend, backend) if dtype == "bfloat16" else backend
    now = PLAIN if enabled is False else now
    if now == PLAIN and kept.get("tf32") is True:
        now, gone = TF32, gone | {"tf32": True}
    return _without(kept, "", gone) | {"backend": now}


def _without(options: dict[str, Any], prefix: str, gone: Mapping[str, Any]) -> dict[str, Any]:
    return {k: v for k, v in options.items() if f"{prefix}{k}" not in gone or v != gone[f"{prefix}{k}"]}
