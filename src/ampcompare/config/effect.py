"""What of a config has an effect: configs that agree in it train the same."""

from __future__ import annotations

from typing import Any

from ampcompare.config.schema import Config
from ampcompare.precision.backends import AUTO, REGISTRY, in_type

GROUP = "precision."
ENABLED, DTYPE = "precision.enabled", "precision.dtype"
SCALE_KEYS = tuple(
    f"{GROUP}{name}"
    for name in (
        *("loss_scale", "init_scale", "growth_interval", "growth_factor", "backoff_factor"),
        *("min_loss_scale", "max_loss_scale", "min_scale_warning"),
    )
)


def effect_of(config: Config) -> dict[str, Any]:
    """The options by dotted key, those without an effect left out: of fp32 all of `precision`, of a backend
    that scales no loss the scale. A type that was not given is the backend's own, and a backend that is
    another one in its type is that one: `native` in bfloat16 `native_bf16`.

    Of plug-ins, which are not imported for this, everything is there as it was given.
    """
    found = config.options()
    if config.backend not in REGISTRY:
        return found
    declared = REGISTRY[config.backend]
    if declared.is_fp32 or not config.precision.enabled:
        told = {key: value for key, value in found.items() if not key.startswith(GROUP)}
        return told if declared.is_fp32 else told | {ENABLED: False}
    has_choice = config.precision.dtype != AUTO or declared.dtypes[1:]
    found[DTYPE] = (has_choice and config.precision.dtype) or declared.dtypes[0]
    found["backend"] = name = in_type(config.backend, found[DTYPE])
    if not REGISTRY[name].scales:
        for key in SCALE_KEYS:
            del found[key]
    return found
