"""Given values as a Config: which option they are for, what OmegaConf makes of `${key}` in them. `options.py`
says what else a value has to be.
"""

import copy
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any

from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from ampcompare.config.options import texts
from ampcompare.config.schema import GROUPS, LEAVES, Config, find_option
from ampcompare.errors import UserError, did_you_mean, reason
from ampcompare.program.place import as_typed
from ampcompare.program.yaml_file import read_word

# All that is taken of OmegaConf's grammar: `${oc.env:WANDB_API_KEY}` in a stranger's config would put a
# secret into the record.
REFERENCE = re.compile(r"(?<!\\)\$\{\w+(\.\w+)*\}")
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
Given = tuple[str, Mapping[Any, Any]]  # the file that says it (nothing: a word), and options as nested there


def build(base: Config, *given: Given) -> Config:
    """The config with the options of these trees, the later one winning.

    Raises UserError with key, value, what is allowed and what may have been meant.
    """
    config = copy.deepcopy(base)
    said: dict[str, tuple[str, Any]] = {}
    for file, tree in given:
        with _named_in(file):
            for leaf, path, value in _options_in(tree):
                if leaf.is_tree:
                    before = said[leaf.key][1] if leaf.key in said else config.value(leaf.key)
                    value = {} if value is None and not path else _grown(before, path, value)
                said[leaf.key] = file, value
    # Those that refer to others when these are settled.
    for key, (file, value) in sorted(said.items(), key=lambda item: _refers(item[1][1])):
        with _named_in(file):
            if "???" in texts(value):
                raise UserError(f"{key}=???: has to be given; expected {LEAVES[key].allowed}")
            found = _resolved(config, said, key) if _refers(value) else value
            config.set(key, LEAVES[key].take(found, value))
    return config


def options_in(tree: Mapping[Any, Any]) -> list[str]:
    """The keys of the options in a tree, nested or with dotted keys. Raises UserError."""
    return [leaf.key for leaf, _, _ in _options_in(tree)]


def parsed(key: str, value: Any) -> Any:
    """A value as it is, but a list, a group or a free tree that is written as a text by what YAML makes of
    it, or Python (so a sweep's agent writes it).
    """
    found = find_option(key)
    is_read = key in GROUPS or (found and (found[0].base is list and not found[0].names))
    if isinstance(value, str) and (is_read or (found and found[0].is_tree and not found[1])):
        with suppress(UserError):  # of which is said what the option expects
            return read_word(key, value)
    return value


def _options_in(tree: Mapping[Any, Any], prefix: str = "") -> Iterator[tuple[Any, Sequence[str], Any]]:
    """Of each option in a tree its leaf, where in it if it is a free tree, and the value."""
    for name, value in tree.items():
        key = f"{prefix}{name}"
        inner = parsed(key, value)
        if key in GROUPS:
            if not isinstance(inner, Mapping | None):
                known = ", ".join(leaf.rpartition(".")[2] for leaf in LEAVES if leaf.startswith(f"{key}."))
                raise UserError(f"{key}={value!r}: a group of options; set one of them: {known}")
            yield from _options_in(inner or {}, f"{key}.")  # `optimizer:` may have nothing under it
        elif found := find_option(key):
            leaf, path = found
            if leaf.is_tree and not path and not isinstance(inner, Mapping | None):
                raise leaf.wrong(value)
            yield leaf, path, inner
        else:
            raise _unknown(key)


def _grown(tree: Any, path: Sequence[str], value: Any) -> Any:
    """A free tree, or what is in it, with a value more: a tree adds to what is there."""
    inner = dict(tree) if isinstance(tree, Mapping) else {}
    if path:
        return inner | {path[0]: _grown(inner.get(path[0]), path[1:], value)}
    if isinstance(value, Mapping):
        return inner | {name: _grown(inner.get(name), [], one) for name, one in value.items()}
    return value


def _refers(value: Any) -> bool:
    return any("${" in text for text in texts(value))


def _resolved(config: Config, said: Mapping[str, tuple[str, Any]], key: str) -> Any:
    """What an option comes to that refers to others. Raises UserError."""
    value = said[key][1]
    try:
        if any("${" in REFERENCE.sub("", text) for text in texts(value)):
            raise ValueError("of ${...} only another option's key is understood, such as ${backend}")
        tree = OmegaConf.create(config.to_dict())
        for other, (_, one) in said.items():
            if _refers(one):
                OmegaConf.update(tree, other, one, merge=False)
        found = OmegaConf.select(tree, key)
        return OmegaConf.to_container(found, resolve=True) if OmegaConf.is_config(found) else found
    except (OmegaConfBaseException, ValueError, RecursionError) as problem:
        raise UserError(f"{key}={value!r}: {reason(problem)}") from None


@contextmanager
def _named_in(file: str) -> Iterator[None]:
    """Say in which file a mistake is."""
    try:
        yield
    except UserError as problem:
        raise UserError(f"{file}: {problem}" if file else str(problem)) from None


def _unknown(key: str) -> UserError:
    last = key.rpartition(".")[2]
    hints = [ours for ours, theirs in KEY_HINTS.items() if last.replace("-", "_") in theirs.split()]
    near = "" if hints else did_you_mean(key, LEAVES)
    if not near:  # `lr` for `optimizer.lr`
        hints += [ours for ours in LEAVES if ours.rpartition(".")[2] == last]
    if hints:
        near = f"did you mean {hints[0]}?"
    listed = f"{as_typed('ampcompare', 'run', '--help-all')} lists every key"
    return UserError(f"{key}: no such key; {near or listed}")
