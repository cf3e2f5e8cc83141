"""The command line `ampcompare`. Each package declares its commands and imports their code when they run."""

import io
import re
import sys
from typing import Annotated, Any

import typer

from ampcompare import __version__
from ampcompare.bench.cli import BENCH_EPILOG, DOCTOR_EPILOG, bench, doctor
from ampcompare.command_help import Command, epilog
from ampcompare.demo import DEMO_EPILOG, demo
from ampcompare.errors import EXIT_BAD_INPUT, UserError, take_debug_flag
from ampcompare.report.cli import REPORT_EPILOG, WORKSPACE_EPILOG, report, workspace
from ampcompare.runtime.help_text import BAD_INPUT, STOPPED
from ampcompare.runtime.signals import EXIT_INTERRUPTED, exit_process, exit_with
from ampcompare.runtime.startup import use_utf8
from ampcompare.sweeps.cli import REPRODUCE_EPILOG, SWEEP_EPILOG, reproduce, sweep
from ampcompare.why.cli import why

app = typer.Typer(
    name="ampcompare",
    help="Measure what mixed precision changes for your network: speed, memory, energy and accuracy. New "
    "here? `ampcompare demo` runs a complete comparison in a few minutes, without an account or a download. "
    "`ampcompare doctor` reports which backends run fast on this machine.",
    epilog=epilog(
        {
            "See a complete comparison on synthetic images": "ampcompare demo",
            "Measure speed and memory of your own network": (
                "ampcompare bench model.name=./net.py:build data.source=./data.py:build"
            ),
            "Train ResNet50 on CIFAR-10 under three backends with five seeds each": (
                "ampcompare sweep compare_backends"
            ),
            "Show the help of a command": "ampcompare sweep --help",
        },
        {
            0: "success",
            1: "a run failed",
            **BAD_INPUT,
            3: "report, reproduce: a requirement or a published result is not shown;\n"
            "sweep --status, sweep --rerun: runs are left to do",
            **STOPPED,
        },
    ),
    add_completion=False,
    rich_markup_mode=None,  # Rich's help takes 0.15 s to import
    pretty_exceptions_enable=False,
)


def _say_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"ampcompare {__version__}")
        raise typer.Exit


@app.callback()
def _commands(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_say_version, is_eager=True, help="Print the version and exit."),
    ] = False,
    debug: Annotated[  # `take_debug_flag` has taken it, wherever it stood; here it is for the help
        bool,
        typer.Option("--debug", help="With any command: show the traceback of an error in your own code."),
    ] = False,
) -> None:
    """Measure what mixed precision changes for your network."""


# What to write where a command misses its argument.
EXAMPLES = {
    "ampcompare report": "ampcompare report runs",
    "ampcompare sweep": "ampcompare sweep compare_backends",
}

# All arguments go to the parser of the training unchanged, `--help` too.
PASS_THROUGH = {"ignore_unknown_options": True, "allow_interspersed_args": False, "help_option_names": []}


@app.command(context_settings=PASS_THROUGH)
def run(
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[--config NAME] [--runs FILE] KEY=VALUE",
            help="Options of the run, such as backend=native.",
        ),
    ] = None,
) -> None:
    """Train one run under a backend and record it."""
    from ampcompare.entrypoint import main as train

    exit_process(train(words or [], "ampcompare run"))


for command, end in (
    (bench, BENCH_EPILOG),
    (doctor, DOCTOR_EPILOG),
    (demo, DEMO_EPILOG),
    (report, REPORT_EPILOG),
    (workspace, WORKSPACE_EPILOG),
    (sweep, SWEEP_EPILOG),
    (reproduce, REPRODUCE_EPILOG),
):
    app.command(cls=Command, epilog=end)(command)
app.add_typer(why, name="why")


def main(arguments: list[str] | None = None) -> None:
    """Run the command line. A user's mistake, of usage or of input, is one line on stderr and exit code 2."""
    if arguments is None:
        use_utf8()
    arguments = take_debug_flag(sys.argv[1:] if arguments is None else arguments)
    command: Any = typer.main.get_command(app)
    if isinstance(sys.stdout, io.TextIOWrapper):  # a terminal that cannot show a character gets a ?
        sys.stdout.reconfigure(errors="replace")
    try:
        status = command.main(args=arguments, prog_name="ampcompare", standalone_mode=False)
    except UserError as error:
        exit_with(error)
    except (KeyboardInterrupt, typer.Abort):
        raise SystemExit(EXIT_INTERRUPTED) from None
    except Exception as error:
        # Usage errors have no public base class in all versions of Typer, but they have `format_message`.
        if not hasattr(error, "format_message") or getattr(error, "exit_code", None) != EXIT_BAD_INPUT:
            raise
        command_path = getattr(getattr(error, "ctx", None), "command_path", "ampcompare")
        message = error.format_message().rstrip(".")
        begin = (
            ", or begin with ampcompare demo"
            if message == "Missing command" and command_path == app.info.name
            else ""
        )
        example = EXAMPLES.get(command_path, "") if message.startswith("Missing argument") else ""
        hint = f"for example: {example}; " if example else _run_option_hint(message)
        exit_with(UserError(f"{message}; {hint}see {command_path} --help{begin}"))
    raise SystemExit(status if isinstance(status, int) else 0)


def _run_option_hint(message: str) -> str:
    """Return how to write an option of a run, where the message is about one with dashes."""
    from ampcompare.config.schema import find_option

    match = re.match(r"No such option: --([\w.]+)", message)
    key = match[1] if match else ""
    return f"write options of a run without dashes, as {key}=VALUE; " if find_option(key) else ""


if __name__ == "__main__":
    main()
