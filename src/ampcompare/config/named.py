"""Options by their names: those in a tree, nested or with dotted keys; what was meant by an unknown one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from ampcompare.config.options import Leaf
from ampcompare.config.schema import GROUPS, LEAVES, find_option
from ampcompare.config.values import Values
from ampcompare.errors import UserError, did_you_mean
from ampcompare.program.place import as_typed
from ampcompare.program.yaml_file import read_text

# What the options are called elsewhere, by the last part of a key.
KEY_HINTS = {
    **dict.fromkeys(("learning_rate", "base_lr", "init_lr"), "optimizer.lr"),
    **dict.fromkeys(("num_epochs", "n_epochs", "max_epochs", "num_train_epochs"), "epochs"),
    **dict.fromkeys(("bs", "batch", "train_batch_size", "per_device_train_batch_size"), "batch_size"),
    **dict.fromkeys(("amp", "opt_level", "mixed_precision", "use_amp"), "backend"),
    **dict.fromkeys(("gpu", "gpus", "accelerator"), "device"),
    **dict.fromkeys(("grad_clip", "max_grad_norm", "gradient_clip_val"), "training.clip_norm"),
    **dict.fromkeys(("gradient_accumulation_steps", "accumulate_grad_batches"), "training.accumulate"),
    **dict.fromkeys(("arch", "model_name"), "model.name"),
    **dict.fromkeys(("wd", "l2"), "optimizer.weight_decay"),
    **dict.fromkeys(("criterion", "loss_fn", "objective"), "task.loss"),
}


def put(values: Values, tree: Mapping[Any, Any]) -> list[str]:
    """Set every option of a tree; returns their keys."""
    return [key for leaf, path, value in options_in(tree) for key in values.put(leaf, value, path)]


def options_in(tree: Mapping[Any, Any], prefix: str = "") -> Iterator[tuple[Leaf, str, Any]]:
    """The options in a tree, nested or with dotted keys, each with its value, and of a free tree the path in
    it. Raises UserError.
    """
    for name, value in tree.items():
        key = f"{prefix}{name}"
        if key in GROUPS:
            inner = _parse(value) if isinstance(value, str) else value
            if not isinstance(inner, Mapping | None):
                known = ", ".join(leaf.rpartition(".")[2] for leaf in LEAVES if leaf.startswith(f"{key}."))
                raise UserError(f"{key}={value!r}: a group of options; set one of them: {known}")
            yield from options_in(inner or {}, f"{key}.")  # `optimizer:` may have nothing under it
        elif found := find_option(key):
            leaf, path = found
            is_list = str(leaf.base).startswith("list") and not leaf.meta["names"]
            # A text stays as it is typed.
            yield leaf, path, _parse(value) if is_list and isinstance(value, str) else value
        else:
            raise _unknown(key)


def _parse(text: str) -> Any:
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
    listed = f"{as_typed('ampcompare', 'run', '--help')} lists every key"
    return UserError(f"{key}: no such key; {near or listed}")
