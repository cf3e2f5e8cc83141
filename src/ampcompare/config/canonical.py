"""The one rule whether two settings are the same: runs of equal ones train the same. Free of torch."""

import json
from collections.abc import Mapping
from typing import Any

from ampcompare.config.options import Role, listed
from ampcompare.config.schema import LEAVES
from ampcompare.errors import UserError
from ampcompare.precision.backends import REGISTRY
from ampcompare.program.yaml_file import flat, read_word

GROUP = "precision."
SCALE_KEYS = tuple(
    GROUP + name
    for name in ("loss_scale", "init_scale", "growth_interval", "min_loss_scale", "max_loss_scale")
)
AUTO = "auto"
TF32 = "tf32"


def canonical(config: Mapping[str, Any], environment: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """The options that can touch a run's figures, by dotted key, each as what it comes to.

    config: as a record holds it, nested or with dotted keys. What it lacks has the option's default; null is
    what it stands for; names are in alphabetical order; `auto` is what `environment` says that it came to; of
    a free tree there is each value, as a word that keeps its type (`64` is not `"64"`). What has no effect
    under its backend, and bookkeeping, is left out.
    """
    found: dict[str, Any] = {}
    told = environment or {}

    def value_of(key: str) -> Any:
        leaf, (group, _, name) = LEAVES[key], key.rpartition(".")
        inner = config.get(group)
        value = config.get(key, inner.get(name, leaf.default) if isinstance(inner, Mapping) else leaf.default)
        if value is None and leaf.null_is:
            return leaf.null_is(value_of)
        return told.get(name, value) if value == AUTO else value

    for key, leaf in LEAVES.items():
        if leaf.role is Role.BOOKKEEPING or has_no_effect(key, str(value_of("backend"))):
            continue
        value = value_of(key)
        if leaf.is_tree and isinstance(value or {}, Mapping):
            found |= {inner: written(one) for inner, one in flat(value or {}, key)}
        else:
            found[key] = _names(value) if leaf.names else value
    return found


def written(value: Any) -> str:
    """The value as a word that reads as the same value: a text that reads as something else is quoted."""
    if isinstance(value, str):
        try:
            is_plain = read_word("", value) == value
        except UserError:
            is_plain = False
        return value if is_plain else json.dumps(value, ensure_ascii=False)
    return "null" if value is None else str(value)


def _names(value: Any) -> Any:
    """Names in alphabetical order, as a list or as a sweep has them; what a record has else, as it is."""
    try:
        return sorted(listed(value) or ())
    except ValueError:
        return value


def has_no_effect(key: str, backend: str) -> bool:
    """Whether an option is none of this backend's: of fp32 all of `precision`, of a backend that scales no
    loss the scale, of one that always uses TF32 the option for it. Of plug-ins, which are not imported for
    this, everything has an effect.
    """
    if (declared := REGISTRY.get(backend)) is None:
        return False
    if declared.uses_tf32 and key == TF32:
        return True
    return (declared.is_fp32 and key.startswith(GROUP)) or (not declared.scales and key in SCALE_KEYS)
