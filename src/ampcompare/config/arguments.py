"""The command line of the entrypoint: every form in which people and W&B's sweep macros write options, and
what `--help` says of them. Free of torch.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from textwrap import shorten
from typing import Any

from ampcompare.config.load import configured, split_override
from ampcompare.config.options import Leaf
from ampcompare.config.schema import LEAVES, Config, find_option
from ampcompare.errors import UserError, reason

DEFAULT_CONFIG = "reference"
RESUME_VARIABLE = "AMPCOMPARE_RESUME"  # by which a sweep tells a run, of any program, that it is tried again

USAGE = "usage: {program} [--config NAME_OR_PATH] [key=value ...]"
ALL = """
Trains one run. --config names a file of configs/ or a path (default: reference); words override its values.
A text may hold another option: wandb.group=strong-${backend}. ??? in a file is for a word to give.
The options, each with its default, meaning and what it may be:
"""
# Those that people set, in the order in which they are asked for.
OFTEN = {
    "what": ("backend", "model.name", "execution", "device"),
    "data": ("data.source", "data.root", "data.train_limit"),
    "training": (
        *("epochs", "max_steps", "batch_size", "seed"),
        *("optimizer.name", "optimizer.lr", "training.accumulate", "training.clip_norm"),
    ),
    "precision": ("precision.loss_scale", "precision.keep_fp32"),
    "record": ("output_dir", "resume", "wandb.mode", "wandb.project"),
}
BY_WORDS = {"backend", "execution", "optimizer.name", "wandb.mode"}  # of which the words say most
BRIEF = 40  # characters of what is said of one of them: 80 with its key and default


def parse(words: Sequence[str]) -> Config:
    """The config that the words ask for; the later word wins. Raises UserError.

    `key=value`, `--key=value`, `--flag` for true, a JSON object or the name of a `.json` file with one,
    Hydra's `+key=value`, and `--config NAME`.
    """
    name: str | None = None
    given: list[dict[str, Any]] = []
    rest = iter(words)
    for word in rest:
        key, equals, value = word.partition("=")
        option = find_option(word[2:]) if word.startswith("--") and not equals else None
        if key == "--config":
            name = value if equals else next(rest, "")
            if not name:
                raise UserError("--config: expected a name or a path after it, such as --config demo")
        elif word.startswith("{") or (word.endswith(".json") and not equals):
            given.append(_of_json(word))
        elif option and option[0].base is bool:
            given.append({word[2:]: True})
        elif option:
            raise UserError(f"{word}: expected {word}=VALUE, {option[0].allowed}")
        else:
            given.append(dict([split_override(word.lstrip("+"))]))
    try:
        return configured(name, given, DEFAULT_CONFIG)
    except RecursionError:  # JSON of a thousand levels
        raise UserError("the options are nested too deeply; write fewer brackets") from None


def _of_json(word: str) -> dict[str, Any]:
    """The options in a JSON object, or in the file of that name."""
    try:
        text = word if word.startswith("{") else Path(word).read_text(encoding="utf-8")
    except (OSError, ValueError) as problem:
        raise UserError(f"{word}: cannot be read ({reason(problem)})") from None
    try:
        content = json.loads(text)
    except (ValueError, RecursionError) as problem:
        expected = 'expected such as {"backend": "native"}'
        raise UserError(f"{word}: not valid JSON ({reason(problem)}); {expected}") from None
    if not isinstance(content, dict):
        raise UserError(f"{word}: expected a JSON object of options, found a {type(content).__name__}")
    return content


def often(program: str) -> str:
    """A line for each option that people set."""
    lines = [
        USAGE.format(program=program),
        "Trains one run. --help-all: every option, with what it may be.\n",
    ]
    for group, options in OFTEN.items():
        for number, key in enumerate(options):
            leaf = LEAVES[key]
            said = ", ".join(leaf.choices) if key in BY_WORDS else leaf.help.partition("; ")[0]
            said = shorten(said, BRIEF, placeholder=" ...")
            lines.append(f"{'' if number else group:<10}{_with_default(leaf):<30}{said}")
    return "\n".join(lines)


def every(program: str) -> str:
    """Every option with meaning, default and allowed values, one block each."""
    lines = [USAGE.format(program=program), ALL.rstrip("\n")]
    for leaf in LEAVES.values():
        lines += [f"  {_with_default(leaf)}", f"      {leaf.help} ({leaf.allowed})"]
    return "\n".join(lines)


def _with_default(leaf: Leaf) -> str:
    said = json.dumps(leaf.default) if isinstance(leaf.default, bool | None) else leaf.default
    return f"{leaf.key}={said}"
