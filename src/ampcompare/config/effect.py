"""What of a config has an effect: configs that agree in it train the same."""

from __future__ import annotations

from typing import Any

from ampcompare.config.schema import Config
from ampcompare.precision.backends import REGISTRY

GROUP = "precision."
SCALE_KEYS = tuple(
    GROUP + name
    for name in ("loss_scale", "init_scale", "growth_interval", "min_loss_scale", "max_loss_scale")
)


def has_no_effect(key: str, backend: str) -> bool:
    """Whether an option is none of this backend's: of fp32 all of `precision`, of a backend that scales no
    loss the scale. Of plug-ins, which are not imported for this, everything has an effect.
    """
    if (declared := REGISTRY.get(backend)) is None:
        return False
    return (declared.is_fp32 and key.startswith(GROUP)) or (not declared.scales and key in SCALE_KEYS)


def effect_of(config: Config) -> dict[str, Any]:
    """The options by dotted key, those without an effect left out."""
    return {key: value for key, value in config.options().items() if not has_no_effect(key, config.backend)}
