"""Given values as a Config: which option they are for, what `${key}` in them comes to. `options.py` says what
else a value has to be.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from ampcompare.config.options import texts
from ampcompare.config.schema import GROUPS, LEAVES, Config, find_option
from ampcompare.errors import UserError, did_you_mean
from ampcompare.program.place import as_typed
from ampcompare.program.yaml_file import read_text

REFERENCE = re.compile(r"(?<!\\)\$\{(\w+(?:\.\w+)*)\}")
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
    done: set[str] = set()
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

    def come_to(key: str, trail: tuple[str, ...] = ()) -> Any:
        """What an option comes to, asked by those of the trail. Raises ValueError."""
        found = find_option(key)
        if not found or key in trail:
            raise ValueError(f"{key} refers to itself" if found else f"{key} is no option")
        leaf, path = found

        def ask(other: str) -> Any:
            return come_to(other, (*trail, key, leaf.key))

        if path and leaf.key in trail:  # a tree's own other part asks
            inner = said[leaf.key][0]
            for name in path:
                inner = inner.get(name) if isinstance(inner, Mapping) else None
            return _resolved(inner, ask)
        if leaf.key in said.keys() - done:
            value, origin = said[leaf.key]
            with named_in(origin):
                if "???" in texts(value):
                    raise UserError(f"{leaf.key}=???: has to be given; expected {leaf.allowed}")
            try:
                resolved = _resolved(value, ask)
            except ValueError as problem:
                with named_in(origin):
                    raise UserError(f"{leaf.key}={value!r}: {problem}") from None
            with named_in(origin):
                config.set(leaf.key, leaf.take(resolved, value))
            done.add(leaf.key)
        return config.value(key)

    for key in said:
        come_to(key)
    return config


def _grown(tree: Any, path: Sequence[str], value: Any) -> Any:
    """A free tree, or what is in it, with a value more: a tree adds to what is there."""
    inner = dict(tree) if isinstance(tree, Mapping) else {}
    if path:
        return inner | {path[0]: _grown(inner.get(path[0]), path[1:], value)}
    if isinstance(value, Mapping):
        return inner | {name: _grown(inner.get(name), [], one) for name, one in value.items()}
    return value


def _resolved(value: Any, of: Callable[[str], Any]) -> Any:
    """The value with what its references come to. Raises ValueError."""
    if isinstance(value, Mapping):
        return {name: _resolved(inner, of) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_resolved(inner, of) for inner in value]
    if not isinstance(value, str) or "${" not in value:
        return value
    if "${" in REFERENCE.sub("", value):
        raise ValueError("of ${...} only another option's key is understood, such as ${backend}")
    whole = REFERENCE.fullmatch(value)
    return of(whole[1]) if whole else REFERENCE.sub(lambda one: str(of(one[1])), value)


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
