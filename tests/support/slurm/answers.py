"""What the commands answer: sbatch, scontrol, squeue, sacct, scancel, and where a step begins."""

from __future__ import annotations

import re
import shlex
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

from support.slurm import processes
from support.slurm.controller import ENDED, Job, Slurm
from support.slurm.options import BadOption, Dependency, Warning, array, numbered, of_script, parse

Answer = dict[str, Any]


def answer(slurm: Slurm, asked: dict[str, Any]) -> Answer:
    """Out, err and exit code of a command."""
    name = asked["name"]
    try:
        with slurm.lock:
            return KNOWN[name](slurm, asked)
    except BadOption as problem:
        return said(err=f"{name}: error: {problem}\n", code=1)


def said(out: str = "", err: str = "", code: int = 0, **more: Any) -> Answer:
    return {"out": out, "err": err, "code": code, **more}


def sbatch(slurm: Slurm, asked: dict[str, Any]) -> Answer:
    """Put a job, or each task of an array, into the queue."""
    given, rest = parse(asked["words"])
    folder = Path(asked["cwd"])
    if "wrap" in given:
        text = f"#!/bin/sh\n# This script was created by sbatch --wrap.\n\n{given['wrap']}\n"
    elif not rest:
        raise BadOption("this stand-in reads no script from its input")
    else:
        path = folder / rest[0]
        if not path.is_file():
            raise BadOption(f"Unable to open file {rest[0]}")
        text = path.read_text()
    options, behind = parse(of_script(text))
    if behind:
        raise BadOption(f"Invalid #SBATCH words: {shlex.join(behind)}")
    options |= given
    if "signal" in options:
        Warning.of(options["signal"])
    for dependency in Dependency.all_of(options.get("dependency", "")):
        if not all(slurm.find(word) for word in dependency.ids):
            raise BadOption("Batch job submission failed: Job dependency problem")
    indices, most = array(options["array"]) if "array" in options else ([], 0)
    if indices and max(indices) >= slurm.max_array_size:
        raise BadOption("Batch job submission failed: Invalid job array specification")
    first = slurm.next_id
    spooled = slurm.folder / "spool" / f"{first}"
    spooled.write_text(text)
    spooled.chmod(0o700)
    env = dict(asked["env"])
    exported = options.get("export", "ALL")
    if exported != "ALL":
        pairs = dict(word.partition("=")[::2] for word in exported.split(",") if "=" in word)
        named = {name: env[name] for name in exported.split(",") if name in env}
        kept = (
            env if "ALL" in exported.split(",") else {n: v for n, v in env.items() if n in ("PATH", "HOME")}
        )
        env = kept | named | pairs
    env = {n: v for n, v in env.items() if not n.startswith("SLURM")}
    where = str(folder / options.get("chdir", "."))
    options.setdefault("job-name", "wrap" if "wrap" in given else Path(rest[0]).name)
    for index in indices or [None]:
        own = (first, index, indices, most) if indices else ()
        slurm.jobs.append(Job(slurm.next_id, options, spooled, rest[1:], env, where, *own))
        slurm.next_id += 1
    return said(f"{first}\n" if "parsable" in options else f"Submitted batch job {first}\n")


def scontrol(slurm: Slurm, asked: dict[str, Any]) -> Answer:
    """`requeue ID`, `show hostnames [LIST]`, `show job ID`, `show config`."""
    words = [word for word in asked["words"] if word not in ("-o", "--oneliner")]
    if words[:1] == ["requeue"] and len(words) > 1:
        for word in numbered(words[1:]):
            found = slurm.find(word)
            if not found:
                return said(err=f"Invalid job id specified for job {word}\n", code=1)
            for job in found:
                if "no-requeue" in job.options:
                    return said(err=f"Requested operation is presently disabled for job {word}\n", code=1)
                slurm.end(job, "REQUEUED")
        return said()
    if words[:2] in (["show", "hostnames"], ["show", "hostname"]):
        listed = words[2] if len(words) > 2 else asked["env"].get("SLURM_JOB_NODELIST", "")
        return said("".join(f"{name}\n" for name in listed.split(",") if name))
    if words == ["show", "config"]:
        return said(f"MaxArraySize            = {slurm.max_array_size}\nMaxJobCount             = 10000\n")
    if words[:2] == ["show", "job"] and len(words) > 2:
        lines = [
            f"JobId={job.id} ArrayJobId={job.array_id or job.id} JobName={job.options['job-name']} "
            f"JobState={job.state} Reason={job.reason} Requeue={int(job.is_requeued)} "
            f"Restarts={job.restarts}\n"
            for job in slurm.find(words[2])
        ]
        return said("".join(lines)) if lines else said(err="slurm_load_jobs error: Invalid job id\n", code=1)
    raise BadOption(f"this stand-in does not know: scontrol {shlex.join(words)}")


def _options(words: list[str], flags: set[str], valued: dict[str, str]) -> tuple[dict[str, str], list[str]]:
    """Options of squeue, sacct and scancel, which give letters meanings of their own."""
    found: dict[str, str] = {}
    rest, left = list(words), []
    while rest:
        word = rest.pop(0)
        name, given, value = word.partition("=") if word.startswith("--") else (word, "", "")
        if not word.startswith("--") and word.startswith("-") and word[:2] in valued and len(word) > 2:
            name, given, value = word[:2], "=", word[2:]
        if name in flags:
            found[name] = ""
        elif name in valued:
            value = value if given else rest.pop(0)
            key = valued[name]
            found[key] = f"{found[key]},{value}" if key in found and key == "jobs" else value
        elif word.startswith("-"):
            raise BadOption(f"unrecognized option '{word}'")
        else:
            left.append(word)
    return found, left


def _chosen(slurm: Slurm, options: dict[str, str]) -> list[Job]:
    if "jobs" not in options:
        return list(slurm.jobs)
    return [job for word in numbered([options["jobs"]]) for job in slurm.find(word)]


def squeue(slurm: Slurm, asked: dict[str, Any]) -> Answer:
    """What waits and runs, by default as `%i %j %T %R`; each task of an array has a line."""
    flags = {"-h", "--noheader", "--me", "-r", "--array", "-a", "--all"}
    valued = {"-j": "jobs", "--jobs": "jobs", "--job": "jobs", "-o": "format", "--format": "format"}
    valued |= {
        "-u": "user",
        "--user": "user",
        "-n": "name",
        "--name": "name",
        "-t": "states",
        "--states": "states",
        "-M": "clusters",
        "--clusters": "clusters",
    }
    env = asked["env"]  # an option goes before its variable
    by_env = {"states": env.get("SQUEUE_STATES"), "user": env.get("SQUEUE_USERS")}
    by_env |= {"format": env.get("SQUEUE_FORMAT"), "clusters": env.get("SLURM_CLUSTERS")}
    options = {name: value for name, value in by_env.items() if value}
    options |= _options(asked["words"], flags, valued)[0]
    pattern = options.get("format", "%i %j %T %R")
    titles = {"i": "JOBID", "j": "NAME", "T": "STATE", "t": "ST", "R": "NODELIST(REASON)", "r": "REASON"}
    titles |= {"A": "JOBID", "F": "ARRAY_JOB_ID", "K": "ARRAY_TASK_ID", "k": "COMMENT"}

    def line(values: dict[str, object]) -> str:
        return re.sub(r"%[.\d]*([a-zA-Z])", lambda m: str(values.get(m[1], "")), pattern) + "\n"

    lines = [f"CLUSTER: {options['clusters']}\n"] if "clusters" in options else []
    lines += [] if {"-h", "--noheader"} & options.keys() else [line(dict(titles))]
    states = options.get("states", "PENDING,RUNNING").upper().split(",")
    for job in _chosen(slurm, options):
        wanted = "ALL" in states or job.state in states or job.state[:2].replace("RU", "R") in states
        if (job.state in ENDED and "states" not in options) or not wanted:
            continue
        if options.get("name", job.options["job-name"]) != job.options["job-name"]:
            continue
        if options.get("user", job.env.get("LOGNAME")) != job.env.get("LOGNAME"):
            continue
        where = "localhost" if job.state == "RUNNING" else f"({job.reason})"
        values = {"i": job.name, "j": job.options["job-name"], "T": job.state, "t": job.state[:2], "R": where}
        values |= {"r": job.reason, "A": str(job.id), "F": str(job.array_id or job.id), "K": str(job.index)}
        values["k"] = job.options.get("comment", "(null)")
        lines.append(line(dict(values)))
    return said("".join(lines))


def sacct(slurm: Slurm, asked: dict[str, Any]) -> Answer:
    """Every job and its state, by default as `-o JobID,State,ExitCode`; columns between bars with -P."""
    flags = {"-P", "--parsable2", "-p", "--parsable", "-X", "--allocations", "-n", "--noheader"}
    valued = {"-j": "jobs", "--jobs": "jobs", "-o": "format", "--format": "format", "-S": "start"}
    valued |= {"--starttime": "start", "-u": "user", "--user": "user", "--name": "name"}
    options, _ = _options(asked["words"], flags, valued)
    columns = options.get("format", "JobID,State,ExitCode").split(",")
    between = "|" if {"-P", "--parsable2", "-p", "--parsable"} & options.keys() else " "
    lines = [] if {"-n", "--noheader"} & options.keys() else [between.join(columns)]
    for job in _chosen(slurm, options):
        code = job.exit_code or 0
        shown = f"{code}:0" if code >= 0 else f"0:{-code}"
        values = {"jobid": job.name, "state": job.state, "exitcode": shown, "nodelist": "localhost"}
        values |= {"jobname": job.options["job-name"], "restarts": str(job.restarts), "jobidraw": str(job.id)}
        lines.append(between.join(values.get(c.partition("%")[0].lower(), "") for c in columns))
    return said("".join(f"{line}\n" for line in lines))


def scancel(slurm: Slurm, asked: dict[str, Any]) -> Answer:
    """End jobs for good, or send them a signal: to the steps, with --batch to the batch shell."""
    valued = {"-s": "signal", "--signal": "signal", "-n": "name", "--name": "name", "--jobname": "name"}
    flags = {"-b", "--batch", "-Q", "--quiet", "-f", "--full", "--me"}
    options, ids = _options(asked["words"], flags, valued)
    found = [job for word in numbered(ids) for job in slurm.find(word)]
    if "name" in options:
        found += [job for job in slurm.jobs if job.options["job-name"] == options["name"]]
    if not found:
        return said(err="scancel: error: Invalid job id specified\n", code=1)
    for job in found:
        if "signal" not in options:
            slurm.end(job, "CANCELLED")
        elif job.state == "RUNNING" and job.process:
            number = Warning.of(options["signal"]).number
            job.history.append(signal.Signals(number).name)
            batch = {"-b", "--batch"} & options.keys()
            steps = processes.of_job(slurm.cluster, job.id, in_steps=True)
            processes.send([job.process.pid] if batch else steps, number)
    return said()


def step(slurm: Slurm, asked: dict[str, Any]) -> Answer:
    """The number of a new step of the job that asks."""
    (job,) = [job for job in slurm.jobs if str(job.id) == asked["env"]["SLURM_JOB_ID"]]
    job.steps += 1
    return said(step=job.steps - 1)


KNOWN: dict[str, Callable[[Slurm, dict[str, Any]], Answer]] = {
    "sbatch": sbatch,
    "scontrol": scontrol,
    "squeue": squeue,
    "sacct": sacct,
    "scancel": scancel,
    "step": step,
}
