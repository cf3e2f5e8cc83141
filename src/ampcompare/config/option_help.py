"""The help of a run: `ampcompare run --help` and `--help-all`. Imports neither torch nor OmegaConf."""

import dataclasses
import json
import textwrap
from collections.abc import Iterator
from typing import Any

from ampcompare.config.option_spec import OptionSpec
from ampcompare.config.schema import OPTIONS, Config
from ampcompare.runtime.help_text import BAD_INPUT, WIDTH, help_lines

USAGE = "Usage: {program} [--config NAME_OR_PATH] [--runs FILE] [KEY=VALUE]..."
PURPOSE = "Train one run under a precision backend and record it."
CONFIG_HELP = (
    "--config names a file in configs/ (reference, strong, demo) or a path; the default is reference. "
    "Options on the command line override the file. --debug shows the traceback of an error in your own "
    "code. --runs FILE trains several runs one after the other in this process, which starts, loads the data "
    "and compiles once. FILE is a JSON list with an entry for each run, such as "
    '[{"overrides": ["seed=1"]}, {"overrides": ["seed=2"]}]. The runs may differ only in seed, resume, '
    "wandb.* and plan.*."
)
VALUES_HELP = (
    "A text may use the value of another option: 'wandb.group=strong-${backend}'. In a config file, the "
    "value ??? marks an option that the command line must set."
)
# The options in the short help, most used first.
COMMON_OPTIONS = {
    "What to train": ("backend", "model.name", "execution", "device"),
    "Data": ("data.source", "data.root", "data.train_limit"),
    "Training": (
        *("recipe", "epochs", "max_steps", "batch_size", "seed"),
        *("optimizer.name", "optimizer.lr", "training.accumulate", "training.clip_norm"),
    ),
    "Precision": ("precision.loss_scale", "precision.keep_fp32"),
    "Record": ("output_dir", "resume", "wandb.mode", "wandb.project"),
}
# The short help lists the choices of these options.
SHOW_CHOICES = {"backend", "execution", "optimizer.name", "recipe", "wandb.mode"}
EXAMPLES = {
    "ResNet50 on CIFAR-10 with native AMP (downloads CIFAR-10 on first use)": "{program} backend=native",
    "A few seconds on synthetic images, on the CPU": "{program} --config demo backend=native device=cpu",
    "Continue a run that was interrupted": "{program} backend=native resume=auto",
    "Your own network and data": (
        "{program} model.name=./net.py:build data.source=./data.py:build backend=native"
    ),
}
EXIT_CODES: dict[int | str, str] = {
    0: "the run finished",
    1: "the run failed",
    **BAD_INPUT,
    "128+": "stopped by a signal, such as 130 for Ctrl-C and 143 for SIGTERM",
}
KEY_COLUMNS = 32  # of a key with its default, in the short help


def short_help(program: str) -> str:
    """Return the usage, the options that people set most, examples and exit codes.

    Args:
        program: The command that the user gave, such as `ampcompare run`.
    """
    lines = [USAGE.format(program=program), "", *_paragraph(PURPOSE), ""]
    lines += _paragraph(
        f"{CONFIG_HELP} `{program} --help-all` lists all {len(OPTIONS)} options with their allowed values."
    )
    for title, keys in COMMON_OPTIONS.items():
        lines += ["", f"{title}:"]
        for key in keys:
            lines += _short_entry(OPTIONS[key])
    examples = {purpose: command.format(program=program) for purpose, command in EXAMPLES.items()}
    return "\n".join([*lines, "", *help_lines(examples, EXIT_CODES)])


def _short_entry(spec: OptionSpec) -> list[str]:
    """Return an option with its default on the left, and the first sentence of its help on the right."""
    text = summary(spec)
    if spec.key in SHOW_CHOICES:
        text = f"{text} One of {', '.join(map(str, spec.choices))}."
    left = f"  {key_with_default(spec)}"
    above = []
    if len(left) >= KEY_COLUMNS:  # too long: on a line of its own
        above = [left]
        left = ""
    return above + textwrap.wrap(
        text,
        WIDTH,
        initial_indent=left.ljust(KEY_COLUMNS),
        subsequent_indent=" " * KEY_COLUMNS,
        break_on_hyphens=False,
    )


def option_help(program: str) -> str:
    """Return the usage, and every option with its default, its meaning and its allowed values.

    Args:
        program: The command that the user gave, such as `ampcompare run`.
    """
    lines = [USAGE.format(program=program), "", *_paragraph(PURPOSE), ""]
    lines += _paragraph(f"{CONFIG_HELP} {VALUES_HELP}")
    for group, about, specs in option_groups():
        title = f"{group}: {about}" if group else about
        lines += ["", *_paragraph(title)]
        for spec in specs:
            lines.append(f"  {key_with_default(spec)}")
            lines += _paragraph(spec.help, 6)
            lines += _paragraph(f"Allowed: {spec.allowed}.", 6)
    return "\n".join(lines)


def option_groups() -> Iterator[tuple[str, str, list[OptionSpec]]]:
    """Yield the name of each group, what the group is about, and its options; first those without a group."""
    yield "", "General options.", [spec for key, spec in OPTIONS.items() if "." not in key]
    for field in dataclasses.fields(Config):
        factory: Any = field.default_factory
        if dataclasses.is_dataclass(factory):
            about = (factory.__doc__ or "").partition("\n\n")[0]
            specs = [spec for key, spec in OPTIONS.items() if key.startswith(f"{field.name}.")]
            yield field.name, about, specs


def summary(spec: OptionSpec) -> str:
    """Return the first sentence of an option's help."""
    return spec.help.partition(". ")[0].rstrip(".") + "."


def default_text(spec: OptionSpec) -> str:
    """Return the default of an option as it is written on the command line."""
    if isinstance(spec.default, bool | None):
        return json.dumps(spec.default)
    return str(spec.default).replace(", ", ",")


def key_with_default(spec: OptionSpec) -> str:
    """Return an option with its default: `backend=none`."""
    return f"{spec.key}={default_text(spec)}"


def _paragraph(text: str, indent: int = 0) -> list[str]:
    """Return a text as lines of the help's width."""
    return textwrap.wrap(
        text,
        WIDTH,
        initial_indent=" " * indent,
        subsequent_indent=" " * indent,
        break_long_words=False,
        break_on_hyphens=False,
    )
