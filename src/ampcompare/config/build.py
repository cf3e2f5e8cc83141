"""Given values as a typed dataclass. OmegaConf's structured config holds the types, resolves `${key}` and
knows what is missing (`???`); `options.py` says what else a value has to be.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from typing import Any, cast

from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException, ValidationError

from ampcompare.config.options import Leaf, texts
from ampcompare.config.schema import GROUPS, LEAVES, find_option
from ampcompare.config.trees import flat
from ampcompare.errors import UserError, did_you_mean, reason
from ampcompare.program.place import as_typed
from ampcompare.program.yaml_file import read_text

# All that is taken of OmegaConf's grammar: `${oc.env:WANDB_API_KEY}` in a stranger's config would put a
# secret into the record.
REFERENCE = re.compile(r"(?<!\\)\$\{\w+(\.\w+)*\}")
# What the options are called elsewhere, by the last part of a key.
KEY_HINTS = {
    **dict.fromkeys(("learning_rate", "base_lr", "init_lr"), "optimizer.lr"),
    **dict.fromkeys(("num_epochs", "n_epochs", "max_epochs", "num_train_epochs"), "epochs"),
    **dict.fromkeys(("bs", "batch", "train_batch_size", "per_device_train_batch_size"), "batch_size"),
    **dict.fromkeys(("amp", "opt_level", "mixed_precision", "use_amp", "dtype"), "backend"),
    **dict.fromkeys(("gpu", "gpus", "accelerator"), "device"),
    **dict.fromkeys(("grad_clip", "max_grad_norm", "gradient_clip_val"), "training.clip_norm"),
    **dict.fromkeys(("gradient_accumulation_steps", "accumulate_grad_batches"), "training.accumulate"),
    **dict.fromkeys(("arch", "model_name"), "model.name"),
    **dict.fromkeys(("wd", "l2"), "optimizer.weight_decay"),
    **dict.fromkeys(("criterion", "loss_fn", "objective"), "task.loss"),
}

NOT_OF_ITS_TYPE = (
    *(OmegaConfBaseException, ValueError, TypeError, LookupError, OverflowError, SyntaxError, RecursionError),
)

_defaults = cache(OmegaConf.structured)  # 13 ms; a copy of it takes 2


def build(
    base: Any, given: Iterable[tuple[str, Any]], of_file: Iterable[tuple[str, Any]] = (), file: str = ""
) -> Any:
    """The Config (or one like the given instance) with these values by dotted key, the later one winning,
    above those of a file.

    Raises UserError with key, value, what is allowed and what may have been meant.
    """
    tree = copy.deepcopy(_defaults(base)) if isinstance(base, type) else OmegaConf.structured(base)
    said: dict[str, tuple[Any, str]] = {}
    for origin, pairs in ((file, of_file), ("", given)):
        for key, value in pairs:
            with named_in(origin):
                leaf = _put(tree, key, value)
            said[leaf.key] = value, origin

    # What is to be given first: whatever refers to it is not known either.
    for key, value in flat("", cast(dict[str, Any], OmegaConf.to_container(tree))):
        if "???" in texts(value) and (found := find_option(key[1:])):
            with named_in(said[found[0].key][1]):
                raise UserError(f"{key[1:]}=???: has to be given; expected {found[0].allowed}")
    for key, (value, origin) in said.items():
        with named_in(origin):
            LEAVES[key].check(_resolved(tree, LEAVES[key], value), value)
    return OmegaConf.to_object(tree)


def _resolved(tree: Any, leaf: Leaf, said: Any) -> Any:
    """What an option comes to, given as `said`. Raises UserError."""
    try:
        value = OmegaConf.select(tree, leaf.key)
        return OmegaConf.to_container(value, resolve=True) if OmegaConf.is_config(value) else value
    except ValidationError:
        raise leaf.wrong(said) from None
    except (OmegaConfBaseException, RecursionError) as problem:
        raise UserError(f"{leaf.key}={said!r}: {reason(problem)}; write the value out") from None


@contextmanager
def named_in(file: str) -> Iterator[None]:
    """Say in which file a mistake is."""
    try:
        yield
    except UserError as problem:
        raise UserError(f"{file}: {problem}" if file else str(problem)) from None


def _put(tree: Any, key: str, value: Any) -> Leaf:
    """Set an option, or what is in a free tree, in an OmegaConf tree. Raises UserError."""
    found = find_option(key)
    assert found
    leaf, path = found
    try:
        if any("${" in REFERENCE.sub("", text) for text in texts(value)):
            what = "of ${...} only another option's key is understood, such as ${backend}"
            raise UserError(f"{key}={value!r}: {what}")
        if not leaf.is_tree:
            OmegaConf.update(tree, leaf.key, leaf.read(value), merge=False)
        elif path or isinstance(value, Mapping):  # which adds to what is there
            OmegaConf.update(tree, key, value, force_add=True)
        elif value is None:
            OmegaConf.update(tree, key, {}, merge=False)
        else:
            raise ValueError
    except NOT_OF_ITS_TYPE:
        raise leaf.wrong(value) from None
    return leaf


def options_in(tree: Mapping[Any, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """The options in a tree, nested or with dotted keys, each with its value. Raises UserError."""
    for name, value in tree.items():
        key = f"{prefix}{name}"
        if key in GROUPS:
            inner = _parsed(value) if isinstance(value, str) else value
            if not isinstance(inner, Mapping | None):
                known = ", ".join(leaf.rpartition(".")[2] for leaf in LEAVES if leaf.startswith(f"{key}."))
                raise UserError(f"{key}={value!r}: a group of options; set one of them: {known}")
            yield from options_in(inner or {}, f"{key}.")  # `optimizer:` may have nothing under it
        elif found := find_option(key):
            leaf = found[0]
            is_list = str(leaf.base).startswith("list") and not leaf.meta["names"]
            # A text stays as it is typed.
            yield key, _parsed(value) if is_list and isinstance(value, str) else value
        else:
            raise _unknown(key)


def _parsed(text: str) -> Any:
    """A word as YAML, or as Python writes it, else the text itself."""
    try:
        return read_text(text)
    except ValueError:
        return text


def _unknown(key: str) -> UserError:
    last = key.rpartition(".")[2]
    meant = KEY_HINTS.get(last.replace("-", "_"))
    near = f"did you mean {meant}?" if meant else did_you_mean(key, LEAVES)
    if not near:  # `lr` for `optimizer.lr`
        namesakes = [name for name in LEAVES if name.rpartition(".")[2] == last]
        near = f"did you mean {namesakes[0]}?" if namesakes else ""
    listed = f"{as_typed('ampcompare', 'run', '--help-all')} lists every key"
    return UserError(f"{key}: no such key; {near or listed}")
