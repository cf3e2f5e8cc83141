"""Hold what was measured on a GPU against what is claimed: one line a claim, with its figure and the limit.

    python benchmarks/gpu_claims.py FOLDER

reads the throughput files in the folder, the newest of each folder in it, and the record of the run of 100
epochs. A ratio is taken within one file only, where both took turns; each file that can answer a claim has a
line. Exit code 0 when all hold, 1 when one does not or has not been measured, 2 for a folder without results.
"""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

Row = dict[str, Any]
OURS = ("eager", "compile", "cuda_graph", "compile_graph")
BY_HAND = ("seed-style", "plain")
RUNS = "runs-100-epochs"
COMPARED = "throughput-compared"  # whose rates say how fast a training in fp16 is


@dataclass(frozen=True)
class Claim:
    """What should hold, the limit, and what was found (None: not measured); `at_least` says on which side."""

    words: str
    limit: float
    found: float | None
    source: str = ""
    at_least: bool = True

    @property
    def holds(self) -> bool:
        return self.found is not None and (
            self.found >= self.limit if self.at_least else self.found <= self.limit
        )

    def cells(self) -> list[str]:
        found = "" if self.found is None else f"{self.found:.3g}"
        verdict = "not measured" if self.found is None else "holds" if self.holds else "does not hold"
        return [
            self.words,
            f"{'at least' if self.at_least else 'at most'} {self.limit:g}",
            found,
            verdict,
            self.source,
        ]


def rate(row: Row) -> float:
    return row["images_per_second"]["median"]


def pick(rows: list[Row], backend: str, *executions: str) -> list[Row]:
    return [
        r
        for r in rows
        if r["backend"] == backend and r["execution"] in executions and "images_per_second" in r
    ]


def best(rows: list[Row], backend: str) -> Row | None:
    """The backend's fastest row of ours, in a file that compares the executions with the loops written by
    hand.
    """
    by_hand = any(r["execution"] in BY_HAND for r in rows)
    return max(pick(rows, backend, *OURS), key=rate, default=None) if by_hand else None


def ratio(one: Row | None, others: list[Row]) -> float | None:
    return rate(one) / rate(others[0]) if one and others else None


def share(row: Row | None, limit: str) -> float | None:
    return rate(row) / row["limits"][limit] if row else None


def native_alone(rows: list[Row]) -> list[Claim]:
    """What native in its best execution should reach."""
    native, who = best(rows, "native"), "native, best execution:"
    return [
        Claim(f"{who} share of the merged limit", 0.6, share(native, "merged")),
        Claim(f"{who} share of a step that the GPU is busy", 0.95, native["busy"] if native else None),
        Claim(f"{who} times the seed-style loop", 2.5, ratio(native, pick(rows, "native", "seed-style"))),
        Claim(f"{who} times the plain eager loop", 1.3, ratio(native, pick(rows, "native", "plain"))),
    ]


def full_precision(rows: list[Row]) -> list[Claim]:
    row = best(rows, "none")
    if row and row["rounds"][0]["environment"]["tf32"]:
        row = None
    return [Claim("none without TF32, best execution: share of the merged limit", 0.8, share(row, "merged"))]


def beside_native(rows: list[Row]) -> list[Claim]:
    """What the other backends should reach in each execution: native within 5 %, or more.

    Nothing of fp16, whose BatchNorm is not cuDNN's (see `precision.half`).
    """
    found = []
    for backend, limit in (("apex_o1", 0.95), ("apex_o2", 1.0)):
        for execution in OURS:
            row = next(iter(pick(rows, backend, execution)), None)
            times = ratio(row, pick(rows, "native", execution))
            found.append(Claim(f"{backend} {execution}: times native {execution}", limit, times))
    return found


def files(folder: Path) -> list[Path]:
    """The throughput files: all in the folder, and the newest of each folder in it, which holds the rounds
    before.
    """

    def date(path: Path) -> str:
        return path.stem.rpartition("-")[2]

    inner = (path.glob("throughput-*.json") for path in sorted(folder.glob("throughput-*")) if path.is_dir())
    newest = (max(found, key=date, default=None) for found in inner)
    return [*sorted(folder.glob("throughput-*.json")), *filter(None, newest)]


def tables(folder: Path) -> dict[str, list[Row]]:
    """The rows of each file that is from a GPU, by its path within the folder."""
    read = {path.relative_to(folder).as_posix(): json.loads(path.read_text()) for path in files(folder)}
    return {name: f["rows"] for name, f in read.items() if f["environment"]["device_type"] == "cuda"}


def fastest_native(folder: Path) -> tuple[tuple[str, ...], float] | None:
    """Options and images a second of native's fastest row of ours in fp16, if it has been measured."""
    found = []
    for name, rows in tables(folder).items():
        if name.partition("/")[0] == COMPARED:
            found += [((f"execution={row['execution']}",), rate(row)) for row in pick(rows, "native", *OURS)]
    return max(found, key=lambda pair: pair[1], default=None)


def judge(folder: Path) -> list[Claim]:
    """Every claim, for each file of a GPU that can answer it, or once without a figure."""
    found: list[Claim] = []
    for claims in (native_alone, full_precision, beside_native):
        for number, unanswered in enumerate(claims([])):
            answers = [replace(claims(rows)[number], source=name) for name, rows in tables(folder).items()]
            found += [c for c in answers if c.found is not None] or [unanswered]
    return [*found, hundred_epochs(folder / RUNS)]


def hundred_epochs(runs: Path) -> Claim:
    """The minutes of the reference experiment, by its own record: a part that was cut short went on where it
    was.
    """
    from ampcompare.records import load_runs

    minutes, source = None, ""
    for run in load_runs([runs]) if runs.is_dir() else []:
        seconds = run.summary_number("time/elapsed_seconds")
        if (
            run.option("epochs") == 100
            and run.option("backend") == "native"
            and run.state == "finished"
            and seconds
        ):
            minutes, source = seconds / 60, f"evaluated every {run.option('eval.every')} epochs"
    return Claim("native, 100 epochs with evaluation: minutes", 10, minutes, source, at_least=False)


def main(words: list[str]) -> int:
    folder = Path(words[0]) if len(words) == 1 else None
    if folder is None or not files(folder):
        print(
            "error: expected one folder with throughput-*.json; `make gpu-check` makes one", file=sys.stderr
        )
        return 2
    claims = judge(folder)
    rows = ["| " + " | ".join(claim.cells()) + " |" for claim in claims]
    text = "\n".join(["| claim | limit | found | | file |", "|---|---|---:|---|---|", *rows])
    print(text)
    (folder / "claims.md").write_text(f"# What should hold on a GPU\n\n{text}\n")
    return 0 if all(claim.holds for claim in claims) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
