"""`ampcompare why`: explain, diff, guard. Torch is imported when one of them runs."""

from pathlib import Path
from typing import Annotated, Any

import typer

from ampcompare.command_help import Command, epilog
from ampcompare.errors import UserError
from ampcompare.runtime.help_text import BAD_INPUT, STOPPED
from ampcompare.runtime.startup import let_threads_sleep

DEFAULT_NETWORK = (
    "Without model.*, data.* and --config, the network is a tiny one on synthetic images on the CPU."
)
why = typer.Typer(
    name="why",
    help="Find out why a backend is fast, slow or inaccurate. `explain` shows dtypes, memory and time of a "
    "training step. `diff` shows which modules deviate from fp32. `guard` finds the modules that must stay "
    "in fp32. No long training is needed.",
    epilog=epilog(
        {
            "Why is native faster or slower than fp32?": "ampcompare why explain backend=native",
            "Which modules are inaccurate in fp16?": "ampcompare why diff backend=fp16",
            "Which modules must stay in fp32?": "ampcompare why guard backend=fp16",
            "Why did a run skip a step, or fail?": "ampcompare why diff --at RUN",
        }
    ),
)
EXPLAIN_EPILOG = epilog(
    {
        "Compare native with fp32 on a tiny network": "ampcompare why explain backend=native",
        "Your own network": (
            "ampcompare why explain backend=native_bf16 model.name=./net.py:build data.source=./data.py:build"
        ),
        "Compare with TF32 instead of strict fp32 (needs an NVIDIA GPU)": (
            "ampcompare why explain backend=native --config demo --against tf32"
        ),
    },
    {0: "success", **BAD_INPUT, **STOPPED},
)
DIFF_EPILOG = epilog(
    {
        "The 15 modules with the largest errors": "ampcompare why diff backend=native",
        "Every module of your own network, also as JSON": (
            "ampcompare why diff backend=fp16 model.name=./net.py:build "
            "data.source=./data.py:build --all --json diff.json"
        ),
        "Is the compiled step wrong, or only different?": (
            "ampcompare why diff execution=eager,compile backend=native_bf16"
        ),
        "The step at which a run failed or skipped a step, or a step that you name": (
            "ampcompare why diff --at runs/wandb/offline-run-20261128_065513-5185643e@27"
        ),
    },
    {0: "success", **BAD_INPUT, **STOPPED},
)
GUARD_EPILOG = epilog(
    {
        "Search in a tiny network": "ampcompare why guard backend=fp16",
        "Your own network, with longer trials": (
            "ampcompare why guard backend=fp16 model.name=./net.py:build "
            "data.source=./data.py:build --steps 100"
        ),
    },
    {
        0: "a remedy was found (modules in fp32, or an option), or none is needed",
        1: "no set of modules helps",
        **BAD_INPUT,
        **STOPPED,
    },
)


@why.callback()
def _before_torch_is_loaded() -> None:
    let_threads_sleep()


# An unknown option may be one of the run, such as `--batch_size 4`: the run's own parser checks it.
RUN_OPTIONS = {"ignore_unknown_options": True}
Words = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="KEY=VALUE",
        help=f"Options of a run, such as backend=native. {DEFAULT_NETWORK}",
    ),
]
ConfigName = Annotated[
    str | None,
    typer.Option(
        metavar="NAME", help="Config file to start from: a path, or a name such as demo or reference."
    ),
]
JsonFile = Annotated[
    Path | None, typer.Option(metavar="FILE", dir_okay=False, help="Write all results as JSON.")
]
At = Annotated[
    str | None,
    typer.Option(
        metavar="RUN[@STEP]",
        help="Look at a step of a recorded run: its folder or id. Without STEP: where it failed, or first "
        "skipped a step after the loss scale had settled, or ended.",
    ),
]
Weights = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help="Trained weights: a checkpoint of a run, or a state dict (safetensors, or torch.save).",
    ),
]

# The defaults where the options choose neither model nor data: quick, and on every machine.
SMALL = ("--config", "demo", "model.name=tiny", "device=cpu")


def _read_state(
    overrides: list[str] | None, config: str | None, at: str | None, weights: Path | None, console: Any
) -> Any:
    """Return the step that `--at` or `--weights` names, or None."""
    if at is not None and weights is not None:
        raise UserError(f"--weights {weights}: --at {at} has weights already; leave one of them out")
    if weights is not None:
        from ampcompare.why.step import from_weights

        return from_weights(weights, _complete(overrides, config))
    if at is None:
        return None
    from ampcompare.runtime.console import print_line
    from ampcompare.why.replay import from_run

    named = ["--config", config] if config else []
    return from_run(at, [*named, *(overrides or [])], lambda line: print_line(console, line))


def _complete(overrides: list[str] | None, config: str | None) -> list[str]:
    """Return the options of the run: the given ones or SMALL, and eager execution.

    A compiled step or a CUDA graph has no single modules and ops to examine.
    """
    overrides = overrides or []
    chosen = ("model.", "data.", "published.", "--config")
    if config is None and not any(word.lstrip("+").startswith(chosen) for word in overrides):
        overrides = [*SMALL, *overrides]
    return [*(["--config", config] if config else []), *overrides, "execution=eager"]


@why.command(cls=Command, epilog=EXPLAIN_EPILOG, context_settings=RUN_OPTIONS)
def explain(
    words: Words = None,
    config: ConfigName = None,
    against: Annotated[
        str, typer.Option(metavar="BACKEND", help="Backend to compare with; none is strict fp32.")
    ] = "none",
    seconds: Annotated[
        float,
        typer.Option(
            metavar="SECONDS",
            min=0,
            help="How long to time the steps of the two backends, interleaved. With 0 only dtypes and memory "
            "are examined.",
        ),
    ] = 10.0,
    at: At = None,
    weights: Weights = None,
    json: JsonFile = None,
) -> None:
    """Show dtypes, memory and time of a step, with reasons.

    The same training step is executed under two backends. The output names the operations that differ in
    dtype or time, and says why.
    """
    from rich.console import Console

    from ampcompare.runtime.console import messages_on
    from ampcompare.why.explain import choose_configs, explain_step
    from ampcompare.why.output import show
    from ampcompare.why.value_pair import refuse_pair

    console = Console(highlight=False)
    with messages_on(console):
        refuse_pair("explain", words or [])
        given = _read_state(words, config, at, weights, console)
        state, configs = choose_configs(_complete(words, config), against, given)
        show(explain_step(state, configs, seconds), console, json)


@why.command(cls=Command, epilog=DIFF_EPILOG, context_settings=RUN_OPTIONS)
def diff(
    words: Words = None,
    config: ConfigName = None,
    every: Annotated[
        bool, typer.Option("--all", help="List every module instead of the 15 with the largest errors.")
    ] = False,
    at: At = None,
    weights: Weights = None,
    json: JsonFile = None,
) -> None:
    """Show each module's error relative to fp32.

    One training step is executed under the backend and in fp32. The output lists the errors of outputs and
    gradients per module, and says where an error begins. With two values of execution, backend or
    memory_format, both are compared with fp64.
    """
    from rich.console import Console

    from ampcompare.runtime.console import messages_on
    from ampcompare.why.accuracy_table import explain_accuracy
    from ampcompare.why.diff import SAMPLES
    from ampcompare.why.diff_answer import explain_difference
    from ampcompare.why.output import show
    from ampcompare.why.step import from_options
    from ampcompare.why.value_pair import split_pair

    console = Console(highlight=False)
    with messages_on(console):
        pair, words = split_pair(words or [])
        state = _read_state(words, config, at, weights, console)
        state = state or from_options(_complete(words, config), samples=SAMPLES)
        if pair is None:
            answer = explain_difference(state, every=every)
        else:
            answer = explain_accuracy(state, pair, every=every)
        show(answer, console, json)


@why.command(cls=Command, epilog=GUARD_EPILOG, context_settings=RUN_OPTIONS)
def guard(
    words: Words = None,
    config: ConfigName = None,
    margin: Annotated[
        float,
        typer.Option(
            metavar="FRACTION",
            help="How far the loss may stay above the loss of fp32, as a fraction of how much fp32 lowers "
            "it.",
        ),
    ] = 0.05,
    steps: Annotated[
        int, typer.Option(metavar="N", min=1, help="Optimizer steps of each trial training.")
    ] = 40,
    at: At = None,
    weights: Weights = None,
    json: JsonFile = None,
) -> None:
    """Find the modules that must stay in fp32.

    Short trial trainings search for a smallest set of modules with which the loss stays within a margin of
    the loss in fp32. The output has the option precision.keep_fp32=... to copy, and how much slower a step
    becomes.
    """
    from rich.console import Console

    from ampcompare.runtime.console import messages_on
    from ampcompare.why.guard import run_guard
    from ampcompare.why.step import from_options
    from ampcompare.why.value_pair import refuse_pair

    console = Console(highlight=False)
    with messages_on(console):
        refuse_pair("guard", words or [])
        state = _read_state(words, config, at, weights, console) or from_options(_complete(words, config))
        code = run_guard(state, console, margin=margin, steps=steps, file=json)
    raise typer.Exit(code)
