"""`ampcompare sweep FILE --cluster slurm`: what is left of a sweep, as one array and its report."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console

from ampcompare.errors import UserError
from ampcompare.sweeps.cluster.slurm import Slurm
from ampcompare.sweeps.cluster.whole import WholeArray
from ampcompare.sweeps.cluster.words import parameters, split
from ampcompare.sweeps.file import Sweep
from ampcompare.sweeps.prepare import prepare
from ampcompare.sweeps.run import GRACE_SECONDS


def submit_sweep(path: str, words: Sequence[str], console: Console, cluster: str, **asked: Any) -> int:
    """Submit what is left of the sweep in the file. `asked` is as for `run_sweep`.

    Returns 0 once it is submitted. Raises UserError, with nothing submitted, for what cannot be an array, and
    where submitit or the batch system is not there.
    """
    if cluster != "slurm":
        raise UserError(f"--cluster {cluster!r}: expected slurm")
    batch, of_runs = split(words)
    ready = prepare(path, of_runs, asked.get("name"), asked.get("control"))
    _check_options(ready.sweep, asked)
    executor, defaults = _submitit()  # before anything is written
    batch_parameters = parameters(batch, defaults, asked.get("workers"))
    array = WholeArray(path, ready, of_runs, console)
    array.options = [f"--{key}={asked[key]}" for key in ("name", "control") if asked.get(key)]
    with array.book.alone() as is_sure:
        if not is_sure:
            array.say(
                f"{array.folder}: this drive knows no locks; let no other command submit this sweep now"
            )
        return Slurm(array, executor, batch_parameters).submit()


def _check_options(sweep: Sweep, asked: Mapping[str, Any]) -> None:
    """Raises UserError for what an array, whose jobs do not know of each other, cannot do."""
    said = "--cluster slurm"
    alone = "a job array is all submitted at once and has no database; leave --cluster out for it"
    for option, value in (
        ("--storage", asked.get("storage")),
        ("--until-decided", asked.get("until_decided")),
    ):
        if value:
            raise UserError(f"{said}: goes without {option}: {alone}")
    if asked.get("grace_seconds", GRACE_SECONDS) != GRACE_SECONDS:
        raise UserError(f"{said}: goes without --grace: {alone}")
    if sweep.method not in ("grid", "random"):
        raise UserError(f"{said}: goes with method grid or random, the file has {sweep.method}: {alone}")
    if sweep.hyperband:
        raise UserError(f"{said}: goes without early_terminate, which compares runs in passing: {alone}")
    if sweep.total() is None:
        raise UserError(f"{said}: a random search needs run_cap, the number of its runs")


def _submitit() -> tuple[Any, dict[str, Any]]:
    """submitit's executor, a class, and the parameters that a job has by default. Raises UserError where it
    is not installed or has no batch system.
    """
    try:
        from submitit.slurm.slurm import SlurmExecutor, _get_default_parameters
    except ImportError as problem:
        if (problem.name or "").partition(".")[0] not in ("submitit", "cloudpickle"):
            raise
        todo = "needs submitit, which is not installed; install it with: pip install 'ampcompare[slurm]'"
        raise UserError(f"--cluster slurm: {todo}") from None
    if missing := [name for name in ("srun", "sbatch") if shutil.which(name) is None]:
        where = "run this on a machine of the cluster that can submit"
        raise UserError(f"--cluster slurm: there is no {missing[0]} on PATH; {where}")
    return SlurmExecutor, _get_default_parameters()
