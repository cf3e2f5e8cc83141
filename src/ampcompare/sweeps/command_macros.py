"""Builds the command of a run: W&B's command macros, filled in as `wandb agent` does."""

import json
import os
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ampcompare.runtime.strict_model import validation_error

DEFAULT_COMMAND = ("${env}", "${interpreter}", "${program}", "${args}")
_MACRO = re.compile(r"\$\{([^}]*)\}")
_ENVIRONMENT = re.compile(r"\$\{envvar:([A-Z0-9_]*)\}")


def checked_word(word: Any) -> str:
    """Return one word of a command in a sweep file.

    Raises:
        PydanticCustomError: The word is no text, or has a macro that no agent could fill in.
    """
    if isinstance(word, bool) or not isinstance(word, str | int | float) or "\0" in str(word):
        raise validation_error("expected a text")
    macros = _MACRO.findall(_ENVIRONMENT.sub("", str(word)))
    is_whole = bool(_MACRO.fullmatch(str(word)))
    if is_whole and not set(macros) <= set(MACROS):
        raise validation_error(f"no such macro; expected one of {', '.join(f'${{{m}}}' for m in MACROS)}")
    if not is_whole and set(macros) & set(MACROS):  # other ${...} are the program's own
        raise validation_error("a macro must be an item of its own in the list")
    return str(word)


def build_command(
    template: Sequence[str], program: str | None, parameters: Mapping[str, Any], json_file: Path
) -> list[str]:
    """Return the words of a run's command. Values are written with `str()`, as W&B's agent does.

    `${interpreter}` is the Python that runs this sweep. W&B's agent takes the `python` on PATH.

    Args:
        template: The `command:` of the sweep file.
        program: What `${program}` stands for.
        parameters: The run's parameters, groups as dictionaries.
        json_file: The file to write where the template has `${args_json_file}`.
    """
    forms = _forms(parameters)
    if "${args_json_file}" in template:
        json_file.write_text(json.dumps(parameters), encoding="utf-8")
        forms["args_json_file"] = [str(json_file)]
    forms |= {"env": ["/usr/bin/env"], "interpreter": [sys.executable]}
    forms["program"] = [program] if program else []
    words: list[str] = []
    for word in template:
        word = _ENVIRONMENT.sub(lambda match: os.environ.get(match[1], match[1]), word)
        macro = _MACRO.fullmatch(word)
        words += forms.get(macro[1], []) if macro else [word]
    return words


def _forms(parameters: Mapping[str, Any]) -> dict[str, list[str]]:
    pairs = [f"{key}={value}" for key, value in parameters.items()]
    shown = [(key, value) for key, value in parameters.items() if value is not False]
    return {
        "args": [f"--{pair}" for pair in pairs],
        "args_no_hyphens": pairs,
        "args_no_equals": [word for key, value in parameters.items() for word in (f"--{key}", str(value))],
        "args_no_boolean_flags": [
            f"--{key}" if value is True else f"--{key}={value}" for key, value in shown
        ],
        "args_json": [json.dumps(parameters)],
        "args_append_hydra": [f"+{pair}" for pair in pairs],
        "args_override_hydra": [f"++{pair}" for pair in pairs],
    }


ARGS_FORMS = (*_forms({}), "args_json_file")
MACROS = ("env", "interpreter", "program", *ARGS_FORMS)
