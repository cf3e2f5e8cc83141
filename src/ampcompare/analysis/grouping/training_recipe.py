"""The recipe of runs as their configs have it: optimizer, learning rate, schedule, length, batch size."""

from collections.abc import Mapping, Sequence
from typing import Any

from ampcompare.analysis.grouping.distinguishing_settings import (
    BATCHES,
    EPOCHS,
    STEPS,
    first_value,
    format_setting,
)
from ampcompare.runs import RunRecord
from ampcompare.runs.nested import as_text
from ampcompare.runtime.formatting import listed, printable, short

# Keys of the config by the name of a setting: first ours, then those of other programs.
OPTIMIZER, RATE, SCHEDULE = "optimizer", "lr", "schedule"
KEYS: Mapping[str, tuple[str, ...]] = {
    OPTIMIZER: ("optimizer.name", "optimizer", "optim", "optimizer_name"),
    RATE: ("optimizer.lr", "lr", "learning_rate", "base_lr"),
    "momentum": ("optimizer.momentum", "momentum"),
    "nesterov": ("optimizer.nesterov", "nesterov"),
    "weight_decay": ("optimizer.weight_decay", "weight_decay"),
    SCHEDULE: ("schedule.name", "lr_scheduler_type", "lr_scheduler", "scheduler", "schedule"),
    "warmup_epochs": ("schedule.warmup_epochs", "warmup_epochs"),
    "label_smoothing": ("training.label_smoothing", "label_smoothing"),
    "epochs": EPOCHS,
    "max_steps": STEPS,
    "batch_size": BATCHES,
}
# The common setting already names length and batch size.
IN_SUBTITLE = tuple(name for name in KEYS if name not in ("epochs", "max_steps", "batch_size"))
MAX_LISTED = 3  # values of a setting that are named; of more, only the number
Recipe = Mapping[str, tuple[Any, ...]]  # the distinct values of each recorded setting, in the order of KEYS


def read_recipe(runs: Sequence[RunRecord]) -> Recipe:
    """Return the distinct values of each recorded setting. A setting without effect is left out.

    Settings without effect are those that are off: no momentum, no weight decay, no limit of steps.
    """
    recipe: dict[str, tuple[Any, ...]] = {}
    for name, keys in KEYS.items():
        recorded = dict.fromkeys(first_value(run, keys) for run in runs)
        values = tuple(value for value in recorded if _is_on(value))
        if values:
            recipe[name] = values
    return recipe


def _is_on(value: Any) -> bool:
    return value is not None and value is not False and value not in ("", "none", 0, -1)


def show_values(values: Sequence[Any]) -> str:
    """Return the values of a setting as text: `0.1`, `0.1 and 0.2`, `20 values`."""
    if len(values) > MAX_LISTED:
        return f"{len(values)} values"
    return listed(short(printable(format_setting(as_text(value)))) for value in values)


def describe_recipe(recipe: Recipe) -> str:
    """Return the recipe in short: `sgd, lr 0.1, momentum 0.9, cosine schedule`; "" if nothing is recorded."""
    parts = []
    for name in IN_SUBTITLE:
        if name not in recipe:
            continue
        text = show_values(recipe[name])
        if name == OPTIMIZER:
            parts.append(text)
        elif name == SCHEDULE:
            parts.append(f"{text} schedule")
        elif recipe[name][0] is True:
            parts.append(name)
        else:
            parts.append(f"{name.replace('_', ' ')} {text}")
    return ", ".join(parts)


def recipe_values(recipe: Recipe) -> dict[str, Any]:
    """Return the value of each setting of KEYS: None without one, a list where runs differ."""
    pairs = ((name, recipe.get(name, (None,))) for name in KEYS)
    return {name: values[0] if len(values) == 1 else [*values] for name, values in pairs}
