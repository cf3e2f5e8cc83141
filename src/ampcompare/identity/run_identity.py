"""`RunIdentity`: what decides a training, as facts with roles. `differences` compares two of them.

A fact is an option or an entry of the recorded environment. Each option declares its role in
`config/schema.py`; the other facts have theirs here. `agreement.py` says which roles must be equal for which
purpose.
"""

import json
from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

from ampcompare import metrics
from ampcompare.config.option_spec import Role
from ampcompare.config.removed import had_no_effect
from ampcompare.config.schema import FREE_FORM, GROUPS, OPTIONS, find_option, has_no_effect
from ampcompare.errors import UserError
from ampcompare.runtime.yaml_io import flatten, parse_yaml_value

AUTO = "auto"
BACKEND = "backend"
NETWORK = "model.name"
ENVIRONMENT = f"{metrics.ENVIRONMENT}."
DEVICE_TYPE = f"{ENVIRONMENT}device_type"
DATA = f"{ENVIRONMENT}data_fingerprint"
TRAIN_DATA = f"{ENVIRONMENT}train_data"
# Roles of the entries of the environment. The software that trains is a part of the machine. Entries that are
# not here (clocks, temperatures, the commit, entries of later versions) decide nothing.
_MACHINE = """
    device_name cpu_count cpu_threads driver platform python torch cuda cudnn
    cudnn_benchmark deterministic memory_format execution fused frozen_weights
"""
FACT_ROLES: Mapping[str, Role] = {
    **dict.fromkeys((*_MACHINE.split(), *metrics.TF32_SWITCHES, *metrics.REDUCTION_DEFAULTS), Role.MACHINE),
    "device_type": Role.EXECUTION,
    "processes": Role.EXECUTION,
    metrics.MODEL_PARAMETERS: Role.CODE,
    "train_data": Role.SEED,  # recorded where the training data depend on the seed
}
SOURCE = "_source"  # the ending of an entry with a hash of code
FINGERPRINT = "_fingerprint"  # the ending of an entry with a hash of data
# Facts that `run.json` and the files of `ampcompare bench` call by another name.
_SAVED_NAMES = {DEVICE_TYPE: "device", DATA: "data", metrics.TEST_SET: "test_set"}
_NAMES_SAVED = {name: key for key, name in _SAVED_NAMES.items()}


class Difference(NamedTuple):
    """A fact with its values in two identities; None where a free-form mapping does not have it."""

    key: str
    first: Any
    second: Any


@dataclass(frozen=True)
class RunIdentity:
    """What decides a training.

    Attributes:
        options: The options that have an effect, by dotted key, with their effective values. Missing options
            have their default, null has its meaning, sets are sorted, and `auto` is replaced. A free-form
            mapping is flattened into words that keep their type (`64` is not `"64"`).
        facts: Other facts, by key: entries of the environment as `environment.NAME`, and `data/test_set`.
        is_complete: Whether what is not in `options` has no effect or is not set; else it is not known.
    """

    options: Mapping[str, Any]
    facts: Mapping[str, Any]
    is_complete: bool = True

    @classmethod
    def of_run(
        cls,
        config: Mapping[str, Any],
        environment: Mapping[str, Any] | None = None,
        summary: Mapping[str, Any] | None = None,
    ) -> "RunIdentity":
        """Return the identity of a run of our own training, now or as it was recorded.

        Args:
            config: The options, nested or with dotted keys, as `Config.to_dict` and a record have them.
            environment: The recorded environment, which has the value that `auto` stood for.
            summary: The recorded summary, which has the fingerprint of the test data.
        """
        entries = environment or {}
        facts = {f"{ENVIRONMENT}{name}": value for name, value in entries.items()}
        facts[metrics.TEST_SET] = (summary or {}).get(metrics.TEST_SET)
        return cls(effective_options(config, entries), _deciding(facts))

    @classmethod
    def of_parts(cls, parts: Mapping[str, Any], *, is_complete: bool) -> "RunIdentity":
        """Return the identity that `named_parts` gave, perhaps of another version of AMP Compare.

        Args:
            parts: Facts by the names in `run.json` or in the file of a benchmark.
            is_complete: Whether an option that is not there had its default.
        """
        values = {key_of(name): value for name, value in parts.items()}
        facts = {key: value for key, value in values.items() if is_recorded_fact(key)}
        deciders = [values.get(BACKEND), values.get(NETWORK)]
        given = {
            key: value
            for key, value in values.items()
            if not is_recorded_fact(key)
            and not has_no_effect(key, *deciders)
            and not had_no_effect(key, value)
        }
        defaults = effective_options(given, {}, *deciders) if is_complete else {}
        return cls({**defaults, **given}, _deciding(facts), is_complete)

    def knows(self, key: str) -> bool:
        """Return whether it is known which value the fact has.

        Of a free-form mapping every setting is known if one is, or if the mapping is known to be empty.
        """
        if is_recorded_fact(key):
            return self.facts.get(key) is not None
        if key in self.options or key in OPTIONS:
            return key in self.options
        if self.is_complete:
            return True
        prefixes = tuple(f"{mapping}." for mapping in FREE_FORM if key.startswith(f"{mapping}."))
        return any(f"{option}.".startswith(prefixes) for option in self.options)

    def select(self, roles: Collection[Role]) -> dict[str, Any]:
        """Return the facts with one of these roles, by key."""
        every = {**self.options, **self.facts}
        return {key: value for key, value in every.items() if role_of(key) in roles}

    def named_parts(self, roles: Collection[Role]) -> dict[str, Any]:
        """Return the facts with one of these roles by the names in `run.json`, as plain values of JSON."""
        parts = {
            name_of(key): value
            for key, value in self.select(roles).items()
            if value is not None or not is_recorded_fact(key)
        }
        return json.loads(json.dumps(parts))


def differences(first: RunIdentity, second: RunIdentity, roles: Collection[Role]) -> list[Difference]:
    """Return the facts with one of these roles that differ, options first, in the order of declaration.

    A fact that only one of the two identities has is not compared: the other record does not tell it, or the
    option has no effect there, because the backend or the network differs, which is a difference itself.
    """
    facts = first.select(roles)
    other_facts = second.select(roles)
    found = []
    for key in {**facts, **other_facts}:
        if not first.knows(key) or not second.knows(key):
            continue
        is_in_both = key in facts and key in other_facts
        if not is_in_both or not _is_same_fact(key, facts[key], other_facts[key]):
            found.append(Difference(key, facts.get(key), other_facts.get(key)))
    return found


def differing(first: Mapping[str, Any], second: Mapping[str, Any]) -> list[Difference]:
    """Return what differs between two mappings of texts, in their order; None where one has no value."""
    pairs = [Difference(key, first.get(key), second.get(key)) for key in {**first, **second}]
    return [pair for pair in pairs if pair.first != pair.second]


def _is_same_fact(key: str, first: Any, second: Any) -> bool:
    if key in OPTIONS:
        return is_same(first, second)
    # The hash 12e4567 is no number, and a word of a free-form mapping keeps its type.
    return _is_equal(first, second)


def _is_equal(first: Any, second: Any) -> bool:
    """Return whether two values are equal, one of them perhaps as text, as the file of a benchmark has it."""
    return first == second or value_text(first) == value_text(second)


def is_same(first: Any, second: Any) -> bool:
    """Return whether two values of a fact are equal. The type of a number does not count.

    >>> is_same(1, 1.0), is_same("0.1", 1e-1), is_same([3, 6], [3.0, 6.0]), is_same(None, 0)
    (True, True, True, False)
    """
    return _is_equal(first, second) or _normal(first) == _normal(second)


def _normal(value: Any) -> Any:
    if isinstance(value, list | tuple):
        return [_normal(item) for item in value]
    try:
        return float(value_text(value))
    except (ValueError, OverflowError):
        return value_text(value)


def value_text(value: Any) -> str:
    """Return a value of a fact as text: null for None, a list with commas.

    Python cannot convert deeply nested values of a record; they give their type.
    """
    if value is None:
        return "null"
    if isinstance(value, list):
        return ",".join(map(value_text, value)) or "null"
    try:
        return str(value)
    except RecursionError:
        return f"{type(value).__name__} that cannot be written"


@lru_cache(maxsize=10_000)
def role_of(key: str) -> Role:
    """Return the role of a fact.

    An option has the role that it declares, and one that this version does not know the role of its group.
    Any other setting of a config may decide the result.
    """
    option = find_option(key)
    if option:
        spec, _ = option
        return spec.role
    group = key.partition(".")[0]
    if group in GROUPS:
        return GROUPS[group]
    if key == metrics.TEST_SET:
        return Role.DATA
    if key in metrics.PROCESS_KEYS:
        return Role.PRESENTATION
    if not key.startswith(ENVIRONMENT):
        return Role.HYPERPARAMETER
    name = key.removeprefix(ENVIRONMENT).partition(".")[0]
    if name in FACT_ROLES:
        return FACT_ROLES[name]
    if name.endswith(SOURCE):
        return Role.CODE
    if name.endswith(FINGERPRINT):
        return Role.DATA
    return Role.PRESENTATION


def is_recorded_fact(key: str) -> bool:
    """Return whether a fact is no option: an entry of the environment, or of the summary."""
    return key.startswith(ENVIRONMENT) or key == metrics.TEST_SET


def keys_with(roles: Collection[Role]) -> list[str]:
    """Return the keys of the options with one of these roles, in the order of declaration."""
    return [key for key, spec in OPTIONS.items() if spec.role in roles]


def effective_options(
    config: Mapping[str, Any], environment: Mapping[str, Any] | None = None, *deciders: str | None
) -> dict[str, Any]:
    """Return the options that have an effect, with their values, as `RunIdentity.options` has them.

    Args:
        config: The options, nested or with dotted keys.
        environment: The recorded environment, which has the value that `auto` stood for.
        deciders: Backend and network, on which it depends whether another option has an effect; None for one
            that is not known. By default those of the config.
    """
    recorded = environment or {}

    def value_of(key: str) -> Any:
        spec = OPTIONS[key]
        value = _look_up(config, key)
        if value is None and spec.null_means:
            return spec.null_means(value_of)
        if value == AUTO:
            return recorded.get(key.rpartition(".")[2], value)
        return typed(key, value)

    backend, network = deciders or (value_text(value_of(BACKEND)), value_text(value_of(NETWORK)))
    effective: dict[str, Any] = {}
    for key, spec in OPTIONS.items():
        if spec.role is Role.PRESENTATION or has_no_effect(key, backend, network):
            continue
        value = value_of(key)
        if spec.is_free_form and isinstance(value or {}, Mapping):
            settings = dict(flatten(value or {}, key))
            settings |= {name: item for name, item in config.items() if str(name).startswith(f"{key}.")}
            effective |= {name: written(item) for name, item in settings.items()}
        else:
            effective[key] = value
    return effective


def _look_up(config: Mapping[str, Any], key: str) -> Any:
    """Return the value of an option in a config that is nested or has dotted keys; by default its default."""
    if key in config:
        return config[key]
    group, _, name = key.rpartition(".")
    options = config.get(group)
    if isinstance(options, Mapping) and name in options:
        return options[name]
    return OPTIONS[key].default


def typed(key: str, value: Any) -> Any:
    """Return a value of an option in its type, such as `["bn", "fc"]` for the text `fc,bn`. Sets are sorted.

    What is no option, or no value of it (a record may hold anything), is returned as it is.
    """
    spec = OPTIONS.get(key)
    if spec is None or spec.is_free_form:
        return value
    if type(value) is spec.type and spec.type is not list:
        return value
    with suppress(UserError, RecursionError):
        converted = spec.convert(value)
        return sorted(converted or ()) if spec.is_set else converted
    return value


def written(value: Any) -> str:
    """Return the value as a word that YAML reads as the same value; other texts are quoted."""
    if value is None:
        return "null"
    if not isinstance(value, str):
        return str(value)
    try:
        is_plain = parse_yaml_value("", value) == value
    except UserError:
        is_plain = False
    return value if is_plain else json.dumps(value, ensure_ascii=False)


def _deciding(facts: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in facts.items() if role_of(key) is not Role.PRESENTATION}


def name_of(key: str) -> str:
    """Return the name of a fact in `run.json` and in messages."""
    return _SAVED_NAMES.get(key, key.removeprefix(ENVIRONMENT))


def key_of(name: str) -> str:
    """Return the key of a fact by its name in `run.json`."""
    if name in _NAMES_SAVED:
        return _NAMES_SAVED[name]
    key = f"{ENVIRONMENT}{name}"
    if find_option(name) is not None or role_of(key) is Role.PRESENTATION:
        return name
    return key
