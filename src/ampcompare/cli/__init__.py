"""The command line `ampcompare`. Each package declares its commands and imports their code when they run."""

import io
import re
import sys
from typing import Annotated, Any

import typer

from ampcompare import __version__
from ampcompare.bench.cli import BENCH_EPILOG, DOCTOR_EPILOG, bench, doctor
from ampcompare.cli import demo
from ampcompare.command_help import Command, epilog
from ampcompare.config.removed import COMMAND_OPTIONS
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
    (demo.demo, demo.DEMO_EPILOG),
    (report, REPORT_EPILOG),
    (workspace, WORKSPACE_EPILOG),
    (sweep, SWEEP_EPILOG),
    (reproduce, REPRODUCE_EPILOG),
):
    app.command(cls=Command, epilog=end)(command)
app.add_typer(why, name="why")


def main(arguments: list[str] | None = None) -> None:
    """Run the command line. A user's mistake, of usage or of input, is one line on stderr and exit code 2.

    Args:
        arguments: The words after `ampcompare`; None: those of this process.
    """
    if arguments is None:
        use_utf8()
        arguments = sys.argv[1:]
    arguments = take_debug_flag(arguments)
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
        if not _is_usage_error(error):
            raise
        exit_with(_explain_usage_error(error))
    raise SystemExit(status if isinstance(status, int) else 0)


def _is_usage_error(error: Exception) -> bool:
    """Return whether Typer found the error in the words of the command line.

    Such errors have no public base class in all versions of Typer, but they have `format_message`.
    """
    return hasattr(error, "format_message") and getattr(error, "exit_code", None) == EXIT_BAD_INPUT


def _explain_usage_error(error: Any) -> UserError:
    """Return Typer's error as one line, with what to write instead if that is known."""
    from ampcompare.config.schema import find_option

    message = error.format_message().rstrip(".")
    command = getattr(getattr(error, "ctx", None), "command_path", "ampcompare")
    if message == "Missing command" and command == app.info.name:
        return UserError(f"{message}; see {command} --help, or begin with ampcompare demo")
    if message.startswith("Missing argument") and command in EXAMPLES:
        return UserError(f"{message}; for example: {EXAMPLES[command]}; see {command} --help")
    option = re.match(r"No such option: --([\w.-]+)", message)
    if option and (instead := COMMAND_OPTIONS.get((command, f"--{option[1]}"))):
        return UserError(f"{command} --{option[1]} went in 0.5; {instead}")
    if option and find_option(option[1]):
        return UserError(
            f"{message}; write options of a run without dashes, as {option[1]}=VALUE; see {command} --help"
        )
    return UserError(f"{message}; see {command} --help")


if __name__ == "__main__":
    main()
