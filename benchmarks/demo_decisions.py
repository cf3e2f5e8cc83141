#!/usr/bin/env python3
"""Repeat the trainings of `ampcompare demo` with other seeds, and count the comparisons that decide.

    python benchmarks/demo_decisions.py runs/decisions                # 20 demos; hours of one core
    python benchmarks/demo_decisions.py runs/decisions --demos 5      # fewer
    python benchmarks/demo_decisions.py runs/decisions epochs=4       # with other options of a run

A demo here is its trainings, without `bench` and the page: each backend with as many seeds as the demo has.
Every demo has its own seeds. The trainings of a backend run one after another in one process, and runs that
the folder already has are not repeated. The comparisons are those of the report (`analyse_runs`).

A loss is planted, too: in each demo and for each backend, the recorded accuracies of this backend are lowered
by exactly one point, and the comparison must show that its accuracy is lower.
"""

import argparse
import os
import statistics
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "src")]

from ampcompare import analyse_runs, load_runs, metrics  # noqa: E402
from ampcompare.analysis.comparison import Comparison  # noqa: E402
from ampcompare.analysis.grouping.run_metrics import QUALITY  # noqa: E402
from ampcompare.cli import demo  # noqa: E402
from ampcompare.runs import RunRecord  # noqa: E402

DEMOS = 20
FIRST_SEED = 1000  # the demo itself has the seeds from 1
BASELINE = "none"
ACCURACY = metrics.EVAL_ACCURACY
PLANTED_LOSS = 0.01  # one point
TRAIN = "import sys; sys.path[:0] = [{path!r}]; import demo_decisions; sys.exit(demo_decisions.train())"


@dataclass(frozen=True)
class Decision:
    """What the comparison of one backend in one demo shows about its accuracy.

    Attributes:
        backend: The backend.
        shown: `equivalent`, `not worse`, `worse`, `better`; empty if the comparison is inconclusive.
        difference: The mean of the paired differences to the baseline in points.
        deviation: The standard deviation of the paired differences in points.
    """

    backend: str
    shown: tuple[str, ...]
    difference: float
    deviation: float


def demo_folder(folder: Path, number: int) -> Path:
    """Return the folder of the runs of a demo."""
    return folder / f"demo-{number:02d}"


def demo_seeds(number: int) -> range:
    """Return the seeds of a demo, which no other demo has."""
    first = FIRST_SEED + number * len(demo.SEEDS)
    return range(first, first + len(demo.SEEDS))


def train() -> int:
    """Train the missing runs of one backend: the folder, the backend, the demos and options are in argv.

    Returns:
        The exit code of the first run that did not finish, else 0.
    """
    from ampcompare.entrypoint import main

    folder, backend, demos, *options = sys.argv[1:]
    for number in range(int(demos)):
        own = demo_folder(Path(folder), number)
        present = {(run.option("backend"), run.option("seed")) for run in finished_runs(own)}
        for seed in demo_seeds(number):
            if (backend, seed) in present:
                continue
            words = [*demo.CONFIG, *demo.PLAN, f"output_dir={own}", "wandb.mode=offline"]
            if code := main([*words, *options, f"backend={backend}", f"seed={seed}"], "demo", brief=True):
                return code
    return 0


def finished_runs(folder: Path) -> list[RunRecord]:
    """Return the finished runs of a folder, none if it does not exist."""
    if not folder.exists():
        return []
    return [run for run in load_runs([folder]) if run.state == "finished"]


def train_all(folder: Path, backends: Sequence[str], demos: int, options: Sequence[str]) -> None:
    """Train all backends, two processes at a time on two cores.

    Raises:
        SystemExit: A training failed. Its message is on stderr.
    """
    command = TRAIN.format(path=str(Path(__file__).parent))
    environment = {"WANDB_SILENT": "true", "OMP_NUM_THREADS": "1"} | os.environ
    waiting, running = list(backends), dict[str, subprocess.Popen[bytes]]()
    while waiting or running:
        while waiting and len(running) < (os.cpu_count() or 1):
            name = waiting.pop(0)
            words = [sys.executable, "-c", command, str(folder), name, str(demos), *options]
            running[name] = subprocess.Popen(words, env=environment, stdout=subprocess.DEVNULL)
        name, process = next(iter(running.items()))
        if process.wait():
            sys.exit(f"{name}: a training failed")
        del running[name]


def lower_accuracy(run: RunRecord, loss: float) -> RunRecord:
    """Return the run with every recorded accuracy lowered by `loss`, in its rows and in its summary."""
    lowered = run.with_columns({ACCURACY: run.numbers(ACCURACY) - loss})
    last = float(lowered.values(ACCURACY)[-1])
    return replace(lowered, summary=lowered.summary | {ACCURACY: last})


def decide(runs: Sequence[RunRecord]) -> dict[str, Decision]:
    """Return what the report shows about the accuracy of each backend."""
    analysis = analyse_runs(runs)
    comparisons = [one for one in analysis.comparisons if QUALITY in one.claims]
    return {one.group.value: _decision(one, runs) for one in comparisons}


def _decision(comparison: Comparison, runs: Sequence[RunRecord]) -> Decision:
    backend = comparison.group.value
    base, own = (_accuracies(runs, name) for name in (BASELINE, backend))
    differences = [100 * (own[seed] - base[seed]) for seed in sorted(own.keys() & base.keys())]
    shown = comparison.claims[QUALITY].shown
    return Decision(backend, shown, statistics.mean(differences), statistics.stdev(differences))


def _accuracies(runs: Sequence[RunRecord], backend: str) -> Mapping[int, float]:
    """Return the last accuracy of each seed of a backend."""
    own = [run for run in runs if run.option("backend") == backend]
    return {run.option("seed"): float(run.values(ACCURACY)[-1]) for run in own}


def plant(runs: Sequence[RunRecord], backend: str) -> list[RunRecord]:
    """Return the runs with the accuracies of one backend lowered by one point."""
    return [lower_accuracy(run, PLANTED_LOSS) if run.option("backend") == backend else run for run in runs]


def summarize(demos: Sequence[Sequence[RunRecord]]) -> Iterator[str]:
    """Yield the lines of the result.

    Args:
        demos: The runs of each demo.
    """
    decided, lower, planted, found = 0, 0, 0, 0
    by_backend: dict[str, list[Decision]] = {}
    for runs in demos:
        decisions = decide(runs)
        decided += all(one.shown for one in decisions.values())
        lower += any("worse" in one.shown for one in decisions.values())
        for backend, one in decisions.items():
            by_backend.setdefault(backend, []).append(one)
            planted += 1
            found += "worse" in decide(plant(runs, backend))[backend].shown
    last = [float(run.values(ACCURACY)[-1]) for runs in demos for run in runs if _is_baseline(run)]
    yield f"accuracy of {BASELINE}: {100 * min(last):.2f}% to {100 * max(last):.2f}%"
    for backend, ones in by_backend.items():
        deviation = statistics.mean(one.deviation**2 for one in ones) ** 0.5
        difference = statistics.mean(one.difference for one in ones)
        words = [", ".join(one.shown) or "inconclusive" for one in ones]
        counts = ", ".join(f"{words.count(word)} {word}" for word in dict.fromkeys(words))
        yield f"{backend}: {difference:+.3f} points, sd of a pair {deviation:.3f}; {counts}"
    yield f"decided: {decided} of {len(demos)} demos; with an accuracy shown to be lower: {lower}"
    yield f"planted loss of {100 * PLANTED_LOSS:g} point found lower: {found} of {planted}"


def _is_baseline(run: RunRecord) -> bool:
    return run.option("backend") == BASELINE


def main() -> None:
    """Train what is missing, and print the result."""
    import torch

    from ampcompare.bench.doctor import default_backends

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("folder", type=Path, help="where the runs are recorded")
    parser.add_argument("--demos", type=int, default=DEMOS, help=f"number of demos ({DEMOS})")
    parser.add_argument("--backends", help="comma-separated; default: those of the demo on this machine")
    parser.add_argument("options", nargs="*", metavar="KEY=VALUE", help="options of every run")
    arguments = parser.parse_args()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    backends = arguments.backends.split(",") if arguments.backends else default_backends(device)
    train_all(arguments.folder, backends, arguments.demos, arguments.options)
    demos = [finished_runs(demo_folder(arguments.folder, number)) for number in range(arguments.demos)]
    print(f"{len(demos)} demos with {len(demo.SEEDS)} seeds each: {', '.join(backends)}")
    for line in summarize(demos):
        print(line)


if __name__ == "__main__":
    main()
