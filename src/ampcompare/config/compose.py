"""Values from files, overrides and sweeps, merged into the structured config of `schema.py`.

`OptionSpec.convert` converts each value. OmegaConf, whose merge takes 5 ms, is used only where a value refers
to another option or is missing. `${...}` is checked before OmegaConf resolves it.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any, NamedTuple

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import MissingMandatoryValue, OmegaConfBaseException, ValidationError

from ampcompare.config.option_spec import MISSING, REFERENCE, OptionSpec
from ampcompare.config.removed import RUN_OPTIONS
from ampcompare.config.schema import FREE_FORM, GROUPS, OPTIONS, Config, find_option
from ampcompare.errors import UserError, did_you_mean, reason
from ampcompare.runtime.paths import shell_command
from ampcompare.runtime.yaml_io import parse_yaml_value

# What the options are called elsewhere, by the last part of a key.
KEY_HINTS = {
    "optimizer.lr": "learning_rate base_lr init_lr",
    "epochs": "num_epochs n_epochs max_epochs num_train_epochs",
    "batch_size": "bs batch train_batch_size per_device_train_batch_size",
    "backend": "amp opt_level mixed_precision use_amp dtype",
    "device": "gpu gpus accelerator",
    "training.clip_norm": "grad_clip max_grad_norm gradient_clip_val",
    "training.accumulate": "gradient_accumulation_steps accumulate_grad_batches",
    "model.name": "arch model_name",
    "optimizer.weight_decay": "wd l2",
    "task.loss": "criterion loss_fn objective",
}


class ConfigSource(NamedTuple):
    """Values of options from one place.

    Attributes:
        values: A mapping, nested or with dotted keys.
        file: The name of their file; empty: none.
    """

    values: Mapping[Any, Any]
    file: str = ""


def compose(*sources: ConfigSource) -> Config:
    """Merge the sources over the defaults, the later one winning, and check each option that was given.

    Raises:
        UserError: One line with file, key, value, what is allowed and what may have been meant.
    """
    values: dict[str, Any] = {}
    given: dict[str, tuple[str, Any]] = {}
    for source in sources:
        with _naming(source.file):
            for spec, value in read_options(source.values):
                given[spec.key] = (source.file, value)
                converted = _convert(spec, value)
                if spec.is_free_form and value is not None and values.get(spec.key):  # null empties it
                    converted = OmegaConf.to_container(OmegaConf.merge(values[spec.key], converted))
                values[spec.key] = converted
    has_references = any("${" in text or MISSING in text for text in _texts([*values.values()]))
    merged = _structure(values) if has_references else None
    # References last: an error of the value that they refer to explains more.
    references_last = sorted(given.items(), key=lambda entry: "${" in str(entry[1][1]))
    config = Config()
    for key, (file, value) in references_last:
        with _naming(file):
            resolved = values[key] if merged is None else _resolve(merged, key, value)
            OPTIONS[key].check(resolved, value)
        group, _, name = key.rpartition(".")
        setattr(config.value(group) if group else config, name, resolved)
    return config


def read_options(values: Mapping[Any, Any], prefix: str = "") -> Iterator[tuple[OptionSpec, Any]]:
    """Yield the options in a mapping with their values; `model.kwargs.width` as a mapping for `model.kwargs`.

    Raises:
        UserError: A key is no option, or the value of a group is no mapping.
    """
    for name, value in values.items():
        key = f"{prefix}{name}"
        inner = read_mapping(key, value)
        if key in GROUPS:
            if not isinstance(inner, Mapping | None):
                known = ", ".join(name for name in OPTIONS if name.startswith(f"{key}."))
                raise UserError(f"{key}={value!r}: {key} is a group of options; set one of {known}")
            yield from read_options(inner or {}, f"{key}.")  # `optimizer:` may have nothing under it
            continue
        option = find_option(key)
        if key in RUN_OPTIONS:
            raise UserError(f"{key} went in 0.5; {RUN_OPTIONS[key]}")
        if option is None:
            raise UserError(f"{key}: no such key; {_near(key)}")
        spec, path = option
        for part in reversed(path):
            inner = {part: inner}
        yield spec, inner


def read_mapping(key: str, value: Any) -> Any:
    """Return the value, parsed if it is a mapping in a text, as W&B's agent writes a group: `{'lr': 0.2}`."""
    if isinstance(value, str) and (key in GROUPS or key in FREE_FORM):
        with suppress(UserError):  # the option's own error says what it expects
            return parse_yaml_value(key, value)
    return value


def _convert(spec: OptionSpec, value: Any) -> Any:
    """Check the texts in the value and convert it."""
    for text in _texts(value):
        _check_text(spec, value, text)
    if spec.is_free_form and value is None:
        return {}
    return spec.convert(value)


def _structure(values: Mapping[str, Any]) -> DictConfig:
    """Return OmegaConf's form of the config, in which references can be resolved."""
    structured = OmegaConf.structured(Config)
    for key, value in values.items():
        OmegaConf.update(structured, key, value)
    return structured


def _check_text(spec: OptionSpec, value: Any, text: str) -> None:
    """Raise UserError for what no text may hold: `${oc.env:WANDB_API_KEY}` would record a secret."""
    if "\0" in text:
        raise spec.error(value, "contains a NUL character; ")
    if any("\ud800" <= c <= "\udfff" for c in text):  # how Python keeps bytes that are not UTF-8
        raise spec.error(value, "contains a byte that is not UTF-8; ")
    if text.endswith("\\???"):  # OmegaConf's escape of its mark for a missing value
        raise spec.error(value, "a text cannot end with \\???; ")
    if "${" in REFERENCE.sub("", text):
        raise UserError(f"{spec.key}={value!r}: ${{...}} may only name another option, such as ${{backend}}")
    for key in REFERENCE.findall(text):
        if not find_option(key):
            raise UserError(f"{spec.key}={value!r}: ${{{key}}} is no option; {_near(key)}")


def _texts(value: Any) -> Iterator[str]:
    """Yield every text in a value, keys of mappings too."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        yield from _texts([*value.keys(), *value.values()])
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _texts(item)


def _resolve(merged: DictConfig, key: str, given: Any) -> Any:
    """Return the value of an option, its references resolved. OmegaConf's exceptions become a UserError."""
    try:
        value = OmegaConf.select(merged, key, throw_on_missing=True)
        if OmegaConf.is_config(value):
            return OmegaConf.to_container(value, resolve=True, throw_on_missing=True)
    except MissingMandatoryValue:
        raise UserError(f"{key}={MISSING}: has no value; set it, expected {OPTIONS[key].allowed}") from None
    except ValidationError:
        raise OPTIONS[key].error(given) from None
    except (OmegaConfBaseException, RecursionError) as problem:
        raise UserError(f"{key}={given!r}: {reason(problem)}") from None
    return value


@contextmanager
def _naming(file: str) -> Iterator[None]:
    """Put the name of the file before the message of a UserError."""
    try:
        yield
    except UserError as problem:
        raise UserError(f"{file}: {problem}" if file else str(problem)) from None


def _near(key: str) -> str:
    """Return which option may have been meant, or where all are listed."""
    last = key.rpartition(".")[2]
    for option, other_names in KEY_HINTS.items():
        if last.replace("-", "_") in other_names.split():
            return f"did you mean {option}?"
    near = did_you_mean(key, OPTIONS)
    if near:
        return near
    for option in OPTIONS:
        if option.rpartition(".")[2] == last:  # `lr` for `optimizer.lr`
            return f"did you mean {option}?"
    return f"{shell_command('ampcompare', 'run', '--help-all')} lists all options"
