"""Under a sweep: whether the run was started with the values that the sweep chose.

W&B shows the sweep's values in the run's config, whatever the program was given. A command without `${args}`,
or with `${args_no_boolean_flags}` and a false parameter that is true by default, would train one thing and
show another.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ampcompare.config.load import typed_values, typed_word
from ampcompare.config.schema import GROUPS, LEAVES, Config, find_option
from ampcompare.config.trees import written
from ampcompare.errors import UserError
from ampcompare.program.yaml_file import read_yaml


def check_chosen(config: Config) -> None:
    """Compare the config with what an agent left for W&B's client. Raises UserError where they differ."""
    path = os.environ.get("WANDB_SWEEP_PARAM_PATH")
    if not path or not Path(path).is_file():
        return
    content = read_yaml(Path(path))
    entries = content.items() if isinstance(content, Mapping) else ()
    check_parameters(config, {k: v["value"] for k, v in entries if isinstance(v, Mapping) and "value" in v})


def check_parameters(config: Config, chosen: Mapping[str, Any]) -> None:
    """Raise UserError where the config has another value than the sweep chose."""
    ours = {name: value for name, value in chosen.items() if name in GROUPS or find_option(name)}
    if isinstance(plan := ours.get("plan"), Mapping):  # with what a sweep notes there of its own
        ours["plan"] = {name: value for name, value in plan.items() if f"plan.{name}" in LEAVES}
    for key, value in typed_values(config, ours).items():
        given = config.value(key)
        if not _is_passed_on(key, value, given):
            why = f"the sweep chose {value!r} and its command did not pass that on"
            todo = "let the command end with ${args_no_hyphens}, which has every parameter"
            raise UserError(f"{key}={given!r}: {why}; {todo}")


def _is_passed_on(key: str, chosen: Any, given: Any) -> bool:
    """Whether the run has what the sweep chose, or in a free tree what a word with that in it comes to."""
    found = find_option(key)
    if not found or not found[0].is_tree:
        return bool(given == chosen)
    return written(given) == written(chosen) or written(given) == written(typed_word(key, str(chosen)))
