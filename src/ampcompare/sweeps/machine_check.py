"""Check before a sweep starts that this machine can train its runs.

A run refuses what its machine lacks, such as TF32. Without this check, the refused runs of a sweep would fail
one by one while the others train for hours.
"""

import json
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import product
from typing import Any, NamedTuple

from ampcompare.config.load import config_from_cli
from ampcompare.errors import UserError
from ampcompare.precision.registry import PLAIN, REGISTRY
from ampcompare.runtime.paths import shell_command
from ampcompare.sweeps.distributions import Parameter
from ampcompare.sweeps.journal import read_journal
from ampcompare.sweeps.prepare import PreparedSweep
from ampcompare.sweeps.sweep import BACKEND, Sweep
from ampcompare.sweeps.sweep_file import key_of
from ampcompare.sweeps.training_options import MAX_TRIED, options_of_run, point_of, starts_with_this_python

KEYS = ("device", BACKEND, "execution")  # the options that depend on the machine
EVERYWHERE = ("auto", "cpu")  # devices that every machine has
ASK = (sys.executable, "-m", "ampcompare.training.machine_support")


class Needs(NamedTuple):
    """What a run needs of its machine: the values of KEYS."""

    device: str
    backend: str
    execution: str

    @property
    def may_be_refused(self) -> bool:
        """Return whether a machine may refuse the run. What a plug-in backend needs is not known."""
        uses_tf32 = self.backend in REGISTRY and REGISTRY[self.backend].uses_tf32
        return uses_tf32 or self.device not in EVERYWHERE or self.execution != "eager"


def check_machine(prepared: PreparedSweep) -> None:
    """Refuse a new sweep with runs that this machine cannot train, unless they run elsewhere.

    Raises:
        UserError: The machine cannot train some of the runs. The message names the command that trains the
            others.
    """
    sweep = prepared.sweep
    runs_elsewhere = prepared.options.cluster is not None or sweep.on_server
    if runs_elsewhere or not prepared.trains_here or not starts_with_this_python(sweep):
        return
    if read_journal(prepared.output) is not None:
        return  # The sweep has begun; each run that is left says what its machine lacks.
    needs = [_needs_of(prepared, parameters) for parameters in _points(sweep)]
    known = [one for one in needs if one is not None]
    refusals = _ask({one for one in known if one.may_be_refused})
    if not refusals:
        return
    accepted = {one for one in known if one not in refusals}
    # The last part of each message says what a single run can do instead.
    reasons = "; ".join(
        dict.fromkeys(message.rpartition("; ")[0] or message for message in refusals.values())
    )
    if not accepted:
        raise UserError(
            f"{sweep.name}: this machine can train none of the runs: {reasons}; change this option, or start "
            "the sweep on another machine"
        )
    command = _command_without(prepared, refusals, accepted)
    if command is None:
        raise UserError(
            f"{sweep.name}: this machine cannot train some of the runs: {reasons}; leave these values out, "
            "or start the sweep on another machine"
        )
    raise UserError(
        f"{sweep.name}: this machine cannot train some of the runs: {reasons}; to train the others: {command}"
    )


def _points(sweep: Sweep) -> Iterator[Mapping[str, Any]]:
    """Yield the parameters of a run for each combination of values of KEYS."""
    if not sweep.is_grid:
        varied = [p for p in sweep.parameters if p.key in KEYS]
        for values in product(*map(_drawn_values, varied)):
            yield point_of(sweep, [], ()) | dict(zip((p.key for p in varied), values, strict=True))
        return
    combinations: dict[str, Mapping[str, Any]] = {}
    for point in sweep.points:
        combinations.setdefault(str([point.parameters.get(key) for key in KEYS]), point.parameters)
    yield from list(combinations.values())[:MAX_TRIED]


def _drawn_values(parameter: Parameter) -> Sequence[Any]:
    """Return the values that a search may draw."""
    shares = parameter.settings.get("probabilities")
    if shares is None:
        return parameter.values() if parameter.is_listed else parameter.examples()
    return [value for value, share in zip(parameter.settings["values"], shares, strict=True) if share]


def _needs_of(prepared: PreparedSweep, parameters: Mapping[str, Any]) -> Needs | None:
    """Return what a run needs; None for options that a run refuses on every machine."""
    with suppress(UserError):
        config = config_from_cli(options_of_run(prepared.sweep, parameters, prepared.overrides))
        return Needs(config.device, config.backend, config.execution)
    return None


def _ask(needs: set[Needs]) -> dict[Needs, str]:
    """Return the error of each run that this machine refuses. A process that loads torch finds them.

    If the process fails, nothing is refused here: the runs themselves will say what is wrong.
    """
    if not needs:
        return {}
    asked = sorted(needs)
    with suppress(OSError, ValueError, IndexError):
        done = subprocess.run(
            ASK, input=json.dumps(asked), capture_output=True, text=True, check=False, encoding="utf-8"
        )
        answers = json.loads(done.stdout.splitlines()[-1])
        return {one: answer for one, answer in zip(asked, answers, strict=True) if answer}
    return {}


def _command_without(
    prepared: PreparedSweep, refusals: Mapping[Needs, str], accepted: set[Needs]
) -> str | None:
    """Return the command that leaves out the values that are always refused; None if that is not enough.

    If the remaining backends lack fp32, strict fp32 takes the place of fp32 with TF32.
    """
    if not prepared.file:
        return None
    varied = {p.key for p in prepared.sweep.parameters if p.is_listed and p.grid_size() > 1}
    changed: dict[str, list[str]] = {}
    still_refused = set(refusals)
    for index, key in enumerate(KEYS):
        kept = {needs[index] for needs in accepted}
        lost = {needs[index] for needs in refusals} - kept
        if key not in varied or not lost:
            continue
        still_refused = {needs for needs in still_refused if needs[index] not in lost}
        values = _values_of(prepared, key)
        changed[key] = [value for value in values if value in kept]
    if still_refused:
        return None
    backends = changed.get(BACKEND, [])
    if backends and not any(name in REGISTRY and REGISTRY[name].is_strict_fp32 for name in backends):
        backends.insert(0, PLAIN)
    command, file, *words = prepared.words()
    kept_words = [word for word in words if word.startswith("--") or key_of(word) not in changed]
    new_words = [f"{key}={','.join(values)}" for key, values in changed.items()]
    return shell_command("ampcompare", command, file, *kept_words, *new_words)


def _values_of(prepared: PreparedSweep, key: str) -> Sequence[str]:
    (parameter,) = (p for p in prepared.sweep.parameters if p.key == key)
    return [str(value) for value in parameter.values()]
