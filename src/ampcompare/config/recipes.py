"""Recipes: named sets of defaults for optimizer, schedule and label smoothing.

A recipe lies below every option that a command line, a config file or a sweep sets. The options that it sets
are recorded with their values, so records are compared by these values and not by the name of the recipe.
This module must stay free of torch.
"""

from collections.abc import Collection, Mapping
from typing import Any

from ampcompare.config.schema import OPTIONS, Config
from ampcompare.config.task_spec import CROSS_ENTROPY
from ampcompare.errors import UserError

REFERENCE, STABLE, ADAMW, AUTO = "reference", "stable", "adamw", "auto"
# Names of options.
RECIPE = "recipe"
OPTIMIZER = "optimizer.name"
MOMENTUM = "optimizer.momentum"
NESTEROV = "optimizer.nesterov"
LABEL_SMOOTHING = "training.label_smoothing"
OPTIMIZER_OF: Mapping[str, str] = {STABLE: "sgd", ADAMW: "adamw"}
# The settings that suit each optimizer. SGD: kuangliu/pytorch-cifar, main.py, with Nesterov momentum. AdamW:
# the defaults of torch.optim.AdamW. Adam: the defaults of torch.optim.Adam, which has no weight decay.
OPTIMIZER_SETTINGS: Mapping[str, Mapping[str, Any]] = {
    "sgd": {"optimizer.lr": 0.1, MOMENTUM: 0.9, NESTEROV: True, "optimizer.weight_decay": 5e-4},
    "adamw": {"optimizer.lr": 1e-3, "optimizer.weight_decay": 0.01},
    "adam": {"optimizer.lr": 1e-3},
}
WARMUP_FRACTION = 0.1  # of the epochs
MAX_WARMUP_EPOCHS = 5.0
# All options that a recipe may set, and eps, in the order in which they are shown.
SETTINGS = (
    *(OPTIMIZER, "optimizer.lr", MOMENTUM, NESTEROV, "optimizer.weight_decay", "optimizer.eps"),
    *("schedule.name", "schedule.warmup_epochs", LABEL_SMOOTHING),
)
ALWAYS_SHOWN = (OPTIMIZER, "optimizer.lr", "schedule.name")


def resolve_recipe(config: Config) -> str:
    """Return the recipe that a config asks for: `reference`, `stable` or `adamw`.

    Raises:
        UserError: The run repeats a publication, which has its own settings, under another recipe.
    """
    if config.published.name is not None:
        if config.recipe not in (None, AUTO, REFERENCE):
            raise UserError(
                f"recipe={config.recipe!r}: published.name={config.published.name} has its own optimizer "
                "and schedule; leave recipe out"
            )
        return REFERENCE
    is_built_in = config.model.name in OPTIONS["model.name"].choices
    if config.recipe is None:
        return REFERENCE if is_built_in else ADAMW
    if config.recipe == AUTO:
        return STABLE if is_built_in else ADAMW
    return config.recipe


def recipe_settings(recipe: str, config: Config, explicit: Collection[str]) -> dict[str, Any]:
    """Return the options that a recipe sets for a run, by dotted key.

    Settings that the run's optimizer or loss does not have are left out.

    Args:
        recipe: The name of the recipe; `reference` sets nothing, because it is the defaults.
        config: The config of the run without the recipe.
        explicit: The keys of the options that have been set. Their values are not checked here.
    """
    if recipe == REFERENCE:
        return {}
    optimizer = config.optimizer.name if OPTIMIZER in explicit else OPTIMIZER_OF[recipe]
    settings: dict[str, Any] = {OPTIMIZER: optimizer, **OPTIMIZER_SETTINGS[optimizer]}
    if MOMENTUM in explicit and config.optimizer.momentum == 0:
        settings.pop(NESTEROV, None)
    settings["schedule.name"] = "cosine"
    settings["schedule.warmup_epochs"] = min(MAX_WARMUP_EPOCHS, WARMUP_FRACTION * config.epochs)
    if recipe == STABLE and config.task.loss == CROSS_ENTROPY:
        settings[LABEL_SMOOTHING] = 0.1
    return settings


def describe_recipe(config: Config, varied: Collection[str] = ()) -> str:
    """Return the recipe of a run with the values in effect, and those that differ from the recipe.

    For example `recipe adamw: adamw, lr=0.01, weight_decay=0.01, cosine, warmup_epochs=0.5; not from the
    recipe: lr=0.01`.

    Args:
        config: The config of the run, with the settings of its recipe.
        varied: Options that a sweep varies. They are left out.
    """
    recipe = resolve_recipe(config)
    from_recipe = recipe_settings(recipe, config, SETTINGS)
    shown = []
    changed = []
    for key in SETTINGS:
        if key in varied:
            continue
        value = config.value(key)
        default = OPTIONS[key].default
        if key in ALWAYS_SHOWN or value != default:
            shown.append(_text(key, value))
        if value != from_recipe.get(key, default):
            changed.append(_text(key, value))
    if config.published.name is not None:
        return f"settings of {config.published.name}: {', '.join(shown)}"
    if changed:
        return f"recipe {recipe}: {', '.join(shown)}; not from the recipe: {', '.join(changed)}"
    return f"recipe {recipe}: {', '.join(shown)}"


def _text(key: str, value: Any) -> str:
    """Return a setting in short: `sgd`, `lr=0.1`, `nesterov=true`."""
    if isinstance(value, str):
        return value
    word = str(value).lower() if isinstance(value, bool) else f"{value:g}"
    return f"{key.rpartition('.')[2]}={word}"
