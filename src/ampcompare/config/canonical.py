"""The rule that decides whether two configs train the same. Imports no torch."""

import json
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from ampcompare.config.option_spec import Role
from ampcompare.config.schema import OPTIONS
from ampcompare.errors import UserError
from ampcompare.precision.registry import REGISTRY
from ampcompare.runtime.yaml_io import flatten, parse_yaml_value

GROUP = "precision."
SCALE_KEYS = tuple(
    GROUP + name
    for name in ("loss_scale", "init_scale", "growth_interval", "min_loss_scale", "max_loss_scale")
)
WEIGHTS = f"{GROUP}weights"  # has an effect under every backend, fp32 too
AUTO = "auto"
TF32 = "tf32"


def canonical(config: Mapping[str, Any], environment: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Return the options that can change a run's results, by dotted key, with their effective values.

    Missing options have their default, null has its meaning, sets are sorted, and `auto` is replaced. A
    free-form mapping is flattened into words that keep their type (`64` is not `"64"`). Bookkeeping, and what
    has no effect under the backend, is left out.

    Args:
        config: The config as a record holds it, nested or with dotted keys.
        environment: The recorded environment, which has the value that `auto` stood for.
    """
    effective: dict[str, Any] = {}
    recorded = environment or {}

    def value_of(key: str) -> Any:
        spec, (group, _, name) = OPTIONS[key], key.rpartition(".")
        inner = config.get(group)
        value = config.get(key, inner.get(name, spec.default) if isinstance(inner, Mapping) else spec.default)
        if value is None and spec.null_means:
            return spec.null_means(value_of)
        return recorded.get(name, value) if value == AUTO else value

    for key, spec in OPTIONS.items():
        if spec.role is Role.BOOKKEEPING or has_no_effect(key, str(value_of("backend"))):
            continue
        value = value_of(key)
        if spec.is_free_form and isinstance(value or {}, Mapping):
            effective |= {inner: written(one) for inner, one in flatten(value or {}, key)}
            continue
        if spec.is_set:
            with suppress(UserError):  # a record may hold anything
                value = sorted(spec.convert(value) or ())
        effective[key] = value
    return effective


def written(value: Any) -> str:
    """Return the value as a word that YAML reads as the same value; other texts are quoted."""
    if isinstance(value, str):
        try:
            is_plain = parse_yaml_value("", value) == value
        except UserError:
            is_plain = False
        return value if is_plain else json.dumps(value, ensure_ascii=False)
    return "null" if value is None else str(value)


def has_no_effect(key: str, backend: str) -> bool:
    """Return whether an option changes nothing under this backend.

    Under fp32 this is all of `precision` but `weights`; without loss scaling the loss scale; under a backend
    that always uses TF32 the option `tf32`. For plug-ins, which are not imported here, every option has an
    effect.
    """
    if (declared := REGISTRY.get(backend)) is None:
        return False
    if declared.uses_tf32 and key == TF32:
        return True
    if declared.is_fp32 and key.startswith(GROUP):
        return key != WEIGHTS
    return not declared.scales and key in SCALE_KEYS
