"""Write docs/cli.md, the reference of the command line, from the help texts. `make docs` calls it."""

import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer

from ampcompare.cli import app
from ampcompare.config import option_help
from ampcompare.runtime.help_text import help_lines

PAGE = Path(__file__).with_name("cli.md")
INTRODUCTION = """\
# Command line

This page lists every command of `ampcompare`, with its options, examples and exit codes, and every option \
of a run. `ampcompare COMMAND --help` prints the same for one command, and `ampcompare run --help-all` \
prints the options of a run. `make docs` writes this page from the help texts.

- **Options of a command** start with two dashes: `--minutes 2`.
- **Options of a run** are written without dashes, as `KEY=VALUE`: `backend=native epochs=5`. `run`, `demo`, \
`sweep`, `reproduce`, `bench` and `why` accept them. They are [listed below](#options-of-a-run).
- **Config files**: `--config demo` starts from `configs/demo.yaml`, `--config my.yaml` from your own file. \
A bundled name always means the bundled file. A file of your own with such a name is `./demo` or `demo.yaml`.
- **In a checkout**, `python run_experiment.py` is the same as `ampcompare run`.
"""


def write_page() -> str:
    """Return the text of the page."""
    root: Any = typer.main.get_command(app)
    commands = list(walk(root, "ampcompare"))
    lines = [*INTRODUCTION.splitlines(), "", "| command | what it does |", "|---|---|"]
    for name, command in commands[1:]:
        lines.append(f"| [`{name}`](#{name.replace(' ', '-')}) | {cell(first_sentence(command))} |")
    for name, command in commands:
        lines += ["", f"## {name}", "", *describe(command, name)]
    lines += ["", "## Options of a run", "", *prose(option_help.CONFIG_HELP), ""]
    lines += [*prose(option_help.VALUES_HELP)]
    for group, about, specs in option_help.option_groups():
        lines += ["", f"### {group or 'General options'}", ""]
        lines += [about, ""] if group else []
        lines += ["| option | default | allowed | meaning |", "|---|---|---|---|"]
        for spec in specs:
            default = option_help.default_text(spec) or "(empty)"
            lines.append(f"| `{spec.key}` | `{default}` | {cell(spec.allowed)} | {cell(spec.help)} |")
    return "\n".join(lines) + "\n"


def walk(command: Any, name: str) -> Iterator[tuple[str, Any]]:
    """Yield a command and all commands below it, with their full names."""
    yield name, command
    for inner, below in getattr(command, "commands", {}).items():
        yield from walk(below, f"{name} {inner}")


def describe(command: Any, name: str) -> Iterator[str]:
    """Yield the lines about one command."""
    for paragraph in (command.help or "").split("\n\n"):
        yield from (*prose(paragraph), "")
    end = [*help_lines(option_help.EXAMPLES, option_help.EXIT_CODES)] if name == "ampcompare run" else []
    text = "\n".join(end).format(program=name) if end else (command.epilog or "").replace("\b\n", "")
    examples, _, exit_codes = text.partition("\n\n")
    yield from ("```bash", *(line[2:] for line in examples.splitlines()[1:]), "```")
    rows = [row(parameter) for parameter in command.params if not getattr(parameter, "hidden", False)]
    if rows:
        yield from ("", "| option | default | meaning |", "|---|---|---|", *rows)
    if exit_codes:
        yield from ("", "| exit code | meaning |", "|---|---|")
        codes = textwrap.dedent(exit_codes.partition("\n")[2]).splitlines()
        for line in "\n".join(codes).replace("\n      ", " ").splitlines():
            code, _, meaning = line.partition(" ")
            yield f"| {code} | {cell(meaning.strip())} |"


def row(parameter: Any) -> str:
    """Return the row of an argument or option of a command."""
    metavar = parameter.metavar or ""
    is_flag = getattr(parameter, "is_flag", False)
    name = (
        metavar if parameter.param_type_name == "argument" else " ".join([*parameter.opts, metavar]).strip()
    )
    default = parameter.default
    shown = "" if is_flag or default in (None, "") or callable(default) else f"`{default}`"
    limits = parameter if hasattr(parameter, "min") else parameter.type  # by version of Typer
    low, high = (getattr(limits, bound, None) for bound in ("min", "max"))
    numbers = [f"at least {low}" if low is not None else "", f"at most {high}" if high is not None else ""]
    bounds = " and ".join(filter(None, numbers))
    text = f"{parameter.help or ''} {bounds.capitalize() + '.' if bounds else ''}".strip()
    return f"| `{name}` | {'required' if parameter.required else shown} | {cell(text)} |"


def first_sentence(command: Any) -> str:
    """Return the first sentence of a command's help."""
    return f"{' '.join((command.help or '').split()).partition('. ')[0].rstrip('.')}."


def prose(text: str) -> list[str]:
    """Return a paragraph as one line that Markdown does not change."""
    return [escape(" ".join(text.split()))]


def cell(text: str) -> str:
    """Return a text for a cell of a table."""
    return escape(" ".join(text.split())).replace("|", r"\|")


def escape(text: str) -> str:
    """Return a text outside code spans with the characters escaped that Markdown would interpret."""
    parts = text.split("`")
    for index in range(0, len(parts), 2):
        for character in "*<":
            parts[index] = parts[index].replace(character, f"\\{character}")
    return "`".join(parts)


if __name__ == "__main__":
    PAGE.write_text(write_page(), encoding="utf-8")
    print(f"wrote {PAGE}")
