"""Everything that needs a GPU, part by part: tests, benchmarks, trainings on real images. `make gpu-check` runs it.

    python benchmarks/gpu_check.py [--out FOLDER] [--data cifar10|synthetic|PATH] [--only WORD] [--minutes N] [--list]

It runs from a checkout, installed or not. Each part has eight minutes and a log in the folder; a part that passed is
not run again, so that a session that ends can be taken up where it was; a training that was cut short goes on from its
checkpoint. Where the GPU is lent for a while, `--minutes` says how long to start parts; the most telling come first.
`summary.md` says what passed, failed or is still to do, `claims.md` what the figures come to beside what is claimed.
Exit code 0 when all parts passed, 1 otherwise, 2 without a GPU.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
LIMIT_SECONDS = 480
GRACE_SECONDS = 15
PYTEST = (sys.executable, "-m", "pytest", "-q", "-m", "gpu")
BENCH_TESTS = ("tests/bench/test_busy.py", "tests/bench/test_recipe.py")  # the others load W&B, which may not be there
AMPCOMPARE = (sys.executable, "-m", "ampcompare.cli")
RUNS = "runs-100-epochs"  # where gpu_claims.py looks for them
TRAIN = (sys.executable, "run_experiment.py")
BACKENDS = ("none", "native", "apex_o1", "apex_o2", "fp16")


def parts(out: Path, data: str = "cifar10") -> dict[str, tuple[str, ...]]:
    """Name and command of each part: first what says whether the rest means anything, last what takes longest.

    Each backend's tests are a process of their own, as an error on the device spoils all that comes after it.
    """
    found: dict[str, tuple[str, ...]] = {
        "tests": (*PYTEST, "tests/data", "tests/measure", "tests/precision", *BENCH_TESTS),
        "tests-waits-cuda-graph": (*PYTEST, "tests/test_fit.py", "-k", "cuda_graph"),
        "tests-waits-eager": (*PYTEST, "tests/test_fit.py", "-k", "eager"),
    }
    for backend in ("native", "apex_o1", "none", "apex_o2", "fp16"):
        found[f"tests-graph-{backend}"] = (*PYTEST, "tests/test_graph.py", "-k", f"{backend} and not compile")

    def bench(execution: str, backends: str, rounds: int) -> tuple[str, ...]:
        options = ("--execution", execution, "--backends", backends, "--rounds", str(rounds), "--device", "cuda")
        return (*AMPCOMPARE, "bench", "throughput", *options, "--out", str(out))

    def train(backend: str, epochs: int, runs: Path) -> tuple[str, ...]:
        how = ("execution=cuda_graph", "memory_format=channels_last", "device=cuda", f"epochs={epochs}")
        record = (f"output_dir={runs}", "wandb.mode=offline", "resume=auto")
        saved = ("checkpoint.every_minutes=2", "checkpoint.every_epochs=null")
        return (*TRAIN, f"backend={backend}", *how, *record, *saved, *source(data))

    every = ",".join(BACKENDS)
    # Each claim is a ratio within one of these, or one row's share of the limit.
    found["throughput-loops-native"] = bench("cuda_graph,compile_graph,eager,plain,seed-style", "native", 2)
    found["throughput-cuda-graph"] = bench("cuda_graph", every, 2)
    found["train-100-epochs-native"] = train("native", 100, out / RUNS)
    found["throughput-loops-none"] = bench("cuda_graph,compile_graph,eager,plain", "none", 2)
    for backend in ("native", "apex_o1", "none"):
        found[f"train-comparison-{backend}"] = train(backend, 20, out / "runs-comparison")
    found["throughput-eager"] = bench("eager", every, 2)
    for execution in ("compile_graph", "compile"):
        for backend in BACKENDS[2:]:
            found[f"throughput-{execution.replace('_', '-')}-{backend}"] = bench(execution, f"native,{backend}", 2)
    found["tests-graph-memory"] = (*PYTEST, "tests/test_graph.py", "-k", "memory")
    for backend in BACKENDS:
        found[f"tests-compile-{backend}"] = (
            *(*PYTEST, "tests/test_graph.py", "tests/test_fit.py"),
            *("-k", f"{backend} and compile"),
        )
    found["recipe"] = (*AMPCOMPARE, "bench", "recipe", "--device", "cuda")
    report = ("report", str(out / "runs-comparison"), "--out", str(out / "report"))
    found["comparison-report"] = (*AMPCOMPARE, *report)
    found["claims"] = (sys.executable, "benchmarks/gpu_claims.py", str(out))
    return found


def source(data: str) -> tuple[str, ...]:
    """The options of a training for what `--data` says."""
    if data in ("cifar10", "synthetic"):
        limits = ("data.train_limit=50000", "data.test_limit=10000") if data == "synthetic" else ()
        return (f"data.source={data}", *limits)
    return ("data.source=image_folder", f"data.root={Path(data).resolve()}")


def run_part(name: str, command: tuple[str, ...], out: Path) -> str:
    """Run one part; returns `passed`, `failed (...)` or `over time`, which its state file holds, too.

    What it started ends with it: a measurement that went on would spoil the next one.
    """
    began = time.monotonic()
    path = os.pathsep.join(filter(None, (str(ROOT / "src"), os.environ.get("PYTHONPATH"))))
    with (out / f"{name}.log").open("w") as log:
        part = subprocess.Popen(
            command,
            cwd=ROOT,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            env=os.environ | {"PYTHONPATH": path, "PYTHONUNBUFFERED": "1"},
        )
        try:
            code = part.wait(LIMIT_SECONDS)
            state = "passed" if code == 0 else f"failed (exit code {code})"
        except subprocess.TimeoutExpired:
            state = f"over time ({LIMIT_SECONDS} s)"
        finally:
            end(part)
    (out / f"{name}.json").write_text(json.dumps({"state": state, "seconds": round(time.monotonic() - began)}))
    return state


def end(part: subprocess.Popen[bytes]) -> None:
    """End a part with all that it started; a training saves its state first, a benchmark what it has measured."""
    for number in (signal.SIGINT, signal.SIGTERM):  # a shell's background jobs ignore the first
        if part.poll() is None:
            part.send_signal(number)
            with contextlib.suppress(subprocess.TimeoutExpired):
                part.wait(GRACE_SECONDS)
    with contextlib.suppress(ProcessLookupError):  # nothing of it is left
        os.killpg(part.pid, signal.SIGKILL)
    part.wait()


def read_state(name: str, out: Path) -> dict[str, object]:
    """What the last run of a part came to."""
    path = out / f"{name}.json"
    return json.loads(path.read_text()) if path.is_file() else {"state": "to do", "seconds": ""}


def write_summary(names: list[str], out: Path) -> bool:
    """Write summary.md; whether every part passed."""
    states = {name: read_state(name, out) for name in names}
    lines = [f"| {name} | {state['state']} | {state['seconds']} |" for name, state in states.items()]
    head = "# GPU check\n\n| part | state | seconds |\n|---|---|---:|\n"
    (out / "summary.md").write_text(head + "\n".join(lines) + "\n")
    return all(state["state"] == "passed" for state in states.values())


def main(words: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else "")
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks" / "results" / "gpu-check")
    parser.add_argument("--data", default="cifar10", help="cifar10, synthetic, or a folder or archive of images")
    parser.add_argument("--only", default="", help="parts with this in their name")
    parser.add_argument("--minutes", type=float, default=float("inf"), help="start no part after so many")
    parser.add_argument("--list", action="store_true", help="name the parts and what they run")
    options = parser.parse_args(words)
    out = options.out.resolve()
    every = parts(out, options.data)
    chosen = {name: command for name, command in every.items() if options.only in name}
    if options.list:
        for name, command in chosen.items():
            print(f"{name}: {' '.join(command[1:])}")
        return 0
    began = time.monotonic()
    import torch

    if not torch.cuda.is_available():
        print("error: gpu-check needs a CUDA device; PyTorch sees none", file=sys.stderr)
        return 2
    out.mkdir(parents=True, exist_ok=True)
    for number, (name, command) in enumerate(chosen.items(), 1):
        if read_state(name, out)["state"] == "passed":
            continue
        if time.monotonic() - began >= options.minutes * 60:
            print(f"{options.minutes:g} minutes are over; started again it goes on with {name}")
            break
        print(f"{number}/{len(chosen)} {name} ...", flush=True)
        print(f"    {run_part(name, command, out)}", flush=True)
        write_summary(list(every), out)
    return 0 if write_summary(list(every), out) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
