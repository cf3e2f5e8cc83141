"""Given values as a Config: which option they are for, what OmegaConf makes of `${key}` in them. `options.py`
says what else a value has to be.
"""

from __future__ import annotations

import copy
import dataclasses
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from ampcompare.config.options import texts
from ampcompare.config.schema import GROUPS, LEAVES, Config, find_option
from ampcompare.errors import UserError, did_you_mean, reason
from ampcompare.program.place import as_typed
from ampcompare.program.yaml_file import read_text

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


def build(
    base: Config, given: Iterable[tuple[str, Any]], of_file: Iterable[tuple[str, Any]] = (), file: str = ""
) -> Config:
    """The config with these values by dotted key, the later one winning, above those of a file.

    Raises UserError with key, value, what is allowed and what may have been meant.
    """
    config = copy.deepcopy(base)
    said: dict[str, tuple[Any, str]] = {}
    for origin, pairs in ((file, of_file), ("", given)):
        for key, value in pairs:
            found = find_option(key)
            assert found  # `options_in` has seen to it
            leaf, path = found
            if leaf.is_tree:
                with named_in(origin):
                    if not (path or isinstance(value, Mapping | None)):
                        raise leaf.wrong(value)
                before = said[leaf.key][0] if leaf.key in said else config.value(leaf.key)
                value = {} if value is None and not path else _grown(before, path, value)
            said[leaf.key] = value, origin
    refer: dict[str, Any] = {}
    for key, (value, origin) in said.items():
        with named_in(origin):
            if "???" in texts(value):
                raise UserError(f"{key}=???: has to be given; expected {LEAVES[key].allowed}")
            if any("${" in text for text in texts(value)):
                refer[key] = value
            else:
                config.set(key, LEAVES[key].take(value, value))
    for key, value in refer.items():
        with named_in(said[key][1]):
            found = _resolved(config, refer, key)
            config.set(key, LEAVES[key].take(found, value))
    return config


def _resolved(config: Config, refer: Mapping[str, Any], key: str) -> Any:
    """What an option comes to that refers to others. Raises UserError."""
    value = refer[key]
    try:
        if any("${" in REFERENCE.sub("", text) for text in texts(value)):
            raise ValueError("of ${...} only another option's key is understood, such as ${backend}")
        tree = OmegaConf.create(dataclasses.asdict(config))
        for other, said in refer.items():
            OmegaConf.update(tree, other, said, merge=False)
        found = OmegaConf.select(tree, key)
        return OmegaConf.to_container(found, resolve=True) if OmegaConf.is_config(found) else found
    except (OmegaConfBaseException, ValueError, RecursionError) as problem:
        raise UserError(f"{key}={value!r}: {reason(problem)}") from None


def _grown(tree: Any, path: Sequence[str], value: Any) -> Any:
    """A free tree, or what is in it, with a value more: a tree adds to what is there."""
    inner = dict(tree) if isinstance(tree, Mapping) else {}
    if path:
        return inner | {path[0]: _grown(inner.get(path[0]), path[1:], value)}
    if isinstance(value, Mapping):
        return inner | {name: _grown(inner.get(name), [], one) for name, one in value.items()}
    return value


@contextmanager
def named_in(file: str) -> Iterator[None]:
    """Say in which file a mistake is."""
    try:
        yield
    except UserError as problem:
        raise UserError(f"{file}: {problem}" if file else str(problem)) from None


def options_in(tree: Mapping[Any, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """The options in a tree, nested or with dotted keys, each with its value. Raises UserError."""
    for name, value in tree.items():
        key = f"{prefix}{name}"
        if key in GROUPS:
            inner = _parsed(value)
            if not isinstance(inner, Mapping | None):
                known = ", ".join(leaf.rpartition(".")[2] for leaf in LEAVES if leaf.startswith(f"{key}."))
                raise UserError(f"{key}={value!r}: a group of options; set one of them: {known}")
            yield from options_in(inner or {}, f"{key}.")  # `optimizer:` may have nothing under it
        elif found := find_option(key):
            is_list = found[0].base is list and not found[0].meta["names"]
            yield key, _parsed(value) if is_list else value
        else:
            raise _unknown(key)


def _parsed(value: Any) -> Any:
    """A word as YAML, or as Python writes it, else the text itself."""
    try:
        return read_text(value) if isinstance(value, str) else value
    except ValueError:
        return value


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
