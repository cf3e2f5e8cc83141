"""`ampcompare sweep FILE --cluster slurm|local`: what is left of a sweep, as one array and its report."""

from __future__ import annotations

import dataclasses
import shutil
from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console

from ampcompare.errors import UserError
from ampcompare.sweeps.check import problems_of
from ampcompare.sweeps.cluster.local import Local
from ampcompare.sweeps.cluster.slurm import Slurm
from ampcompare.sweeps.cluster.whole import WholeArray
from ampcompare.sweeps.cluster.words import parameters, split
from ampcompare.sweeps.file.sweep import Sweep, read_sweep
from ampcompare.sweeps.run import GRACE_SECONDS, check_name, find_sweep

CLUSTERS = ("slurm", "local")


def submit_sweep(path: str, words: Sequence[str], console: Console, cluster: str, **asked: Any) -> int:
    """Submit what is left of the sweep in the file. `asked` is as for `run_sweep`.

    Returns 0 once it is submitted; `local` waits, and returns 1 if runs failed, 128 + signal if stopped.
    Raises UserError, with nothing submitted, for what cannot be an array, and where submitit or the batch
    system is not there.
    """
    if cluster not in CLUSTERS:
        raise UserError(f"--cluster {cluster!r}: expected one of {', '.join(CLUSTERS)}")
    batch, of_runs = split(words)
    sweep = read_sweep(find_sweep(path), lambda found, is_whole: problems_of(found, of_runs, is_whole))
    _check_options(sweep, cluster, batch, asked)
    name = asked.get("name")
    sweep = sweep if name is None else dataclasses.replace(sweep, name=name)
    check_name(sweep.name)
    executor = _executor(cluster)  # before anything is written
    batch_parameters = _batch_parameters(cluster, batch, asked.get("workers"))
    array = WholeArray(path, sweep, of_runs, console, asked.get("control"))
    array.options = [f"--{key}={asked[key]}" for key in ("name", "control") if asked.get(key)]
    with array.book.alone() as is_sure:
        if not is_sure:
            array.say(
                f"{array.folder}: this drive knows no locks; let no other command submit this sweep now"
            )
        if cluster == "slurm":
            return Slurm(array, executor, batch_parameters).submit()
        array.agree()
        return Local(array, executor(array.book.jobs)).run()


def _check_options(sweep: Sweep, cluster: str, batch: Mapping[str, str], asked: Mapping[str, Any]) -> None:
    """Raises UserError for what an array, whose jobs do not know of each other, cannot do."""
    said = f"--cluster {cluster}"
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
    if cluster == "local" and batch:
        raise UserError(f"slurm.{next(iter(batch))}: goes with --cluster slurm alone")
    if cluster == "local" and asked.get("workers") is not None:
        raise UserError(f"{said}: goes without --workers: submitit starts all its jobs at once")


def _executor(cluster: str) -> Any:
    """submitit's executor, a class. Raises UserError where it is not installed or has no batch system."""
    try:
        from submitit.local.local import LocalExecutor
        from submitit.slurm.slurm import SlurmExecutor
    except ImportError as problem:
        if (problem.name or "").partition(".")[0] not in ("submitit", "cloudpickle"):
            raise
        todo = "needs submitit, which is not installed; install it with: pip install 'ampcompare[slurm]'"
        raise UserError(f"--cluster {cluster}: {todo}") from None
    if cluster == "local":
        return LocalExecutor
    if missing := [name for name in ("srun", "sbatch") if shutil.which(name) is None]:
        where = "run this on a machine of the cluster that can submit, or try --cluster local"
        raise UserError(f"--cluster slurm: there is no {missing[0]} on PATH; {where}")
    return SlurmExecutor


def _batch_parameters(cluster: str, batch: Mapping[str, str], workers: int | None) -> dict[str, Any]:
    if cluster != "slurm":
        return {}
    from submitit.slurm.slurm import _get_default_parameters

    return parameters(batch, _get_default_parameters(), workers)
