"""`ampcompare bench throughput`: backends x executions x batch sizes, in turn, beside the machine's limit.

Beside the executions of a run there are two loops written by hand, `seed-style` and `plain` (`baselines.py`).
Free of torch: each combination runs in a process of its own, A B C A B C ..., so that a machine that slows
down over an hour slows all alike.
"""

from __future__ import annotations

import itertools
import statistics
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from ampcompare.bench.child import measure
from ampcompare.bench.results import Median, estimate, header, machine_words, markdown_table, write_results
from ampcompare.bench.throughput import BASELINE, HAND_WRITTEN
from ampcompare.bench.throughput.kept import Kept
from ampcompare.config.load import load_config
from ampcompare.config.schema import LEAVES, Config
from ampcompare.errors import UserError
from ampcompare.metrics import ARITHMETIC, EMULATED, UNKNOWN
from ampcompare.report.charts.draw import SCHEMA

COLUMNS = ("backend", "execution", "batch", "images/s", "speed-up", "of limit", "merged", "busy", "MiB")
BASELINES = ("seed-style", "plain")
LONGEST = 5  # kernels that the Markdown lists; the JSON has more
# A step of ResNet50 in fp16 takes a CPU that emulates it minutes.
CPU_WORDS = ("model.name=tiny", "data.train_limit=2048")
GPU_WORDS = ("data.train_limit=12800",)


Counted = tuple[str, int]  # backend, batch size


@dataclass
class Combination:
    """One row: what is run, and what came of it each time."""

    backend: str
    execution: str
    batch_size: int
    words: list[str]
    config: Config
    results: list[dict[str, Any]] = field(default_factory=list)
    refused: str = ""
    source: str = ""  # the hash of a plug-in's file

    def is_of(self, result: dict[str, Any]) -> bool:
        """Whether an earlier result is of the same source of the backend."""
        return result["environment"].get("backend_source", "") == self.source

    @property
    def rate(self) -> Median:
        return estimate([r["images_per_second"] for r in self.results])

    @property
    def busy(self) -> float | None:
        """The share of a step in which the device works: the median over the rounds, None if not known."""
        shares = [r["busy"] for r in self.results if r["busy"] is not None]
        return statistics.median(shares) if shares else None

    @property
    def counted(self) -> Counted:
        """What the bytes and arithmetic of its step depend on."""
        return self.backend, self.batch_size

    @property
    def label(self) -> str:
        return f"{self.backend} {self.execution} batch {self.batch_size}"


def combinations(
    backends: Sequence[str],
    executions: Sequence[str],
    batch_sizes: Sequence[int],
    words: Sequence[str],
    device: str,
) -> list[Combination]:
    """Every combination with its checked config. Raises UserError."""
    known = [*LEAVES["execution"].meta["choices"], *BASELINES]
    if wrong := [name for name in executions if name not in known]:
        raise UserError(f"--execution {wrong[0]!r}: expected some of {', '.join(known)}")
    common = ["data.source=synthetic", f"device={device}", "optimizer.momentum=0.9"]
    common += CPU_WORDS if device == "cpu" else GPU_WORDS
    found = []
    for size, execution, backend in itertools.product(batch_sizes, executions, backends):
        by_hand = execution in BASELINES
        own = [f"backend={backend}", f"execution={'eager' if by_hand else execution}", f"batch_size={size}"]
        every = [*common, *words, *own]
        config = load_config(None, every)
        if not by_hand or backend in HAND_WRITTEN:
            found.append(Combination(backend, execution, size, every, config))
    if not found:
        raise UserError(
            f"--execution {','.join(executions)}: loops written by hand have the backends "
            f"{' and '.join(HAND_WRITTEN)}; name one with --backends"
        )
    return found


def limit(ops: Sequence[Sequence[float]], roofline: dict[str, Any], dtype: str, tf32: bool = False) -> float:
    """Images/s if each op took the longer of its arithmetic and its traffic at the measured ceilings.

    `dtype` is that of the products; one whose ceiling was not measured gives an infinite rate of them.
    """
    rates, copy = roofline["flop_per_second"], roofline["bytes_per_second"]
    name = "tf32" if dtype == "float32" and tf32 and "tf32" in rates else dtype
    rates = rates | {name: rates.get(name, float("inf"))}
    return 1 / sum(max(size / copy, flop / rates[name]) for size, flop in ops)


def is_ceiling(dtype: str, environment: Mapping[str, Any]) -> bool:
    """Whether the rate of products in the type bounds a training: not where a CPU emulates it, worse in
    products than in convolutions.
    """
    arithmetic = environment.get(ARITHMETIC) or {}
    on_units = arithmetic.get(dtype, EMULATED) not in (EMULATED, UNKNOWN)
    return environment["device_type"] != "cpu" or dtype == "float32" or on_units


def bench_throughput(
    backends: Sequence[str],
    executions: Sequence[str],
    batch_sizes: Sequence[int],
    rounds: int,
    steps: int,
    device: str,
    words: Sequence[str],
    out: Path | None,
    console: Console,
    go_on: bool = False,
) -> None:
    """Measure, print, write. Raises UserError for bad input or if nothing could be measured.

    `go_on` keeps each measurement in `out` and begins with those there, of this machine and these options.
    """
    where = device_type(device)
    rows = combinations(backends, executions, batch_sizes, words, "cpu" if where == "cpu" else device)
    if where == "cpu":
        console.print(f"On a CPU the model is small ({' '.join(CPU_WORDS)}): no figure here is one of a GPU.")
    warmup = max(10, steps // 5)
    label = TextColumn("{task.description}", markup=False)
    columns = (label, BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True) as progress:
        counts = {r.counted for r in rows}
        task = progress.add_task("measuring", total=rounds * len(rows) + 1 + len(counts))
        roofline = measure("throughput.roofline", {"device": rows[0].config.device}, "the roofline")
        progress.advance(task)
        kept = Kept(out, roofline["environment"]) if go_on and out else None
        traffic: dict[Counted, Any] = {}
        for row in rows:
            if row.counted not in traffic:
                request = {"words": row.words, "count": True}
                traffic[row.counted] = measure("throughput.measure", request, f"counting {row.backend}")
                progress.advance(task)
            row.source = traffic[row.counted]["backend_source"]
        end: KeyboardInterrupt | None = None
        try:
            for number, row in itertools.product(range(rounds), rows):
                progress.update(task, description=row.label)
                loop = {"loop": row.execution} if row.execution in BASELINES else {}
                request = {"words": row.words, "warmup": warmup, "steps": steps, **loop}
                if kept and number == 0:
                    row.results = [r for r in kept.results(request) if row.is_of(r)][:rounds]
                if not row.refused and len(row.results) <= number:
                    try:
                        row.results.append(measure("throughput.measure", request, row.label))
                        if kept:
                            kept.add(request, row.results[-1])
                    except UserError as problem:
                        row.refused = str(problem)
                        progress.console.print(f"{row.label}: {problem}", markup=False)
                progress.advance(task)
        except KeyboardInterrupt as signal:  # minutes on a GPU: what was measured so far is kept
            end = signal
    if any(row.results for row in rows):
        _report(rows, traffic, roofline, {"rounds": rounds, "steps": steps, "warmup": warmup}, out, console)
    elif not end:
        raise UserError("bench throughput: nothing could be measured; the lines above say why")
    if end:
        raise end
    if go_on and (refused := ", ".join(row.label for row in rows if row.refused)):
        raise UserError(f"bench throughput: {refused}: not measured, as said above; try again with --go-on")


def _report(
    rows: list[Combination],
    traffic: dict[Counted, Any],
    roofline: dict[str, Any],
    how: dict[str, Any],
    out: Path | None,
    console: Console,
) -> None:
    base = {(r.execution, r.batch_size): r.rate.median for r in rows if r.backend == BASELINE and r.results}
    cells: list[list[str]] = []
    records: list[dict[str, Any]] = []
    for row in rows:
        name = [row.backend, row.execution, str(row.batch_size)]
        if not row.results:
            cells.append([*name, "failed" if row.refused else "not measured", *[""] * (len(COLUMNS) - 4)])
            records.append({"backend": row.backend, "execution": row.execution, "refused": row.refused})
            continue
        counted, tf32 = traffic[row.counted], row.config.tf32
        dtype, kinds = counted["dtype"], counted["per_image"]
        limits = {kind: limit(ops, roofline, dtype, tf32) for kind, ops in kinds.items()}
        own = base.get((row.execution, row.batch_size))
        share, merged = row.rate.median / limits["eager"], row.rate.median / limits["merged"]
        peaks = [r["peak_mib"] for r in row.results if r["peak_mib"] is not None]
        peak = max(peaks) if peaks else None
        ratio = None if own is None else row.rate.median / own
        speed = "" if ratio is None else f"{ratio:.2f}x"
        has_ceiling = is_ceiling(dtype, row.results[0]["environment"])
        shares = [f"{share:.0%}", f"{merged:.0%}"] if has_ceiling else ["", ""]
        busy = "" if row.busy is None else f"{row.busy:.0%}"
        cells.append([*name, str(row.rate), speed, *shares, busy, "" if peak is None else f"{peak:,.0f}"])
        run = {"backend": row.backend, "execution": row.execution, "batch_size": row.batch_size}
        found = {"images_per_second": row.rate, "speed_up": ratio, "limits": limits, "busy": row.busy}
        records.append({**run, **found, "rounds": row.results})
    table = Table(title="Training throughput", box=None)
    for column in COLUMNS:
        side: Any = "left" if column in COLUMNS[:2] else "right"
        table.add_column(column, justify=side, no_wrap=column != "images/s")
    for cell in cells:
        table.add_row(*cell)
    console.print(table)
    head = header(next(row for row in rows if row.results).results[0]["environment"])
    rates = ", ".join(f"{k} {v / 1e12:.3g} TFLOP/s" for k, v in roofline["flop_per_second"].items())
    # Fewer of some rows where the benchmark was interrupted.
    rounds = " or ".join(map(str, sorted({len(row.results) for row in rows if row.results})))
    note = (
        f"Medians (95 % intervals where there are six rounds or more, ranges below) of {rounds} "
        f"interleaved rounds of {how['steps']} steps, each in a process of its own. Limit: every op at this "
        f"device's measured ceilings ({rates}; copy {roofline['bytes_per_second'] / 1e9:,.0f} GB/s); merged: "
        "pointwise ops in the kernel before them. MiB: peak memory. Busy: share of a step in which a kernel "
        "runs, by PyTorch's profiler."
    )
    console.print(note)
    console.print(machine_words(head))
    if out is not None:
        text = f"# Training throughput\n\n{markdown_table(COLUMNS, cells)}\n\n{note}{_kernels(rows)}"
        keys = ("backend", "batch_size")
        counted = [dict(zip(keys, key, strict=True)) | found for key, found in traffic.items()]
        body = {**how, "roofline": roofline, "traffic": counted, "rows": records}
        measured = [r for r in rows if r.results]
        for path in write_results(out, "throughput", head, body, text, lambda: _chart(measured)):
            console.print(f"wrote {path}", soft_wrap=True, markup=False)


def _kernels(rows: list[Combination]) -> str:
    """Where the time of a step goes on the device: the longest kernels of each row's last round."""
    parts = []
    for row in rows:
        if found := row.results[-1]["profile"] if row.results else None:
            cells = [
                [f"`{k['name'].replace('|', ' ')[:90]}`", f"{k['count']:.1f}", f"{k['ms']:.3f}"]
                for k in found["longest"][:LONGEST]
            ]
            work = f"{found['kernels']:.0f} kernels and {found['busy_ms']:.2f} ms of work a step"
            table = markdown_table(("kernel", "a step", "ms a step"), cells)
            parts.append(f"### {row.label}: {work}\n\n{table}")
    return "\n\n## Where the time of a step goes\n\n" + "\n\n".join(parts) if parts else ""


def _chart(rows: list[Combination]) -> dict[str, Any]:
    values = []
    for row in rows:
        rate = {"rate": row.rate.median, "low": row.rate.low, "high": row.rate.high}
        values.append({"backend": row.backend, "run": f"{row.execution}, batch {row.batch_size}", **rate})

    def channel(field: str, kind: str, **more: Any) -> dict[str, Any]:
        return {"field": field, "type": kind, **more}

    rate = channel("rate", "quantitative", title="images per second")
    low = channel("low", "quantitative", title="images per second")
    bars = {"mark": {"type": "bar", "height": 12}, "encoding": {"x": rate}}
    spans = {"mark": {"type": "rule", "strokeWidth": 2}, "encoding": {"x": low, "x2": {"field": "high"}}}
    backend = channel("backend", "nominal", sort=None, title=None)
    return {
        "$schema": SCHEMA,
        "data": {"values": values},
        "facet": {"row": channel("run", "nominal", sort=None, title=None)},
        "spec": {"width": 460, "encoding": {"y": backend}, "layer": [bars, spans]},
    }


def device_type(device: str) -> str:
    """cpu, cuda or mps: what `device` means here, asked of a process that loads torch. Raises UserError."""
    code = "import sys, ampcompare.machine.device as d; print(d.resolve_device(sys.argv[1]).type)"
    done = subprocess.run([sys.executable, "-c", code, device], capture_output=True, text=True, check=False)
    if done.returncode:
        said = done.stderr.strip().splitlines()[-1].partition("UserError: ")[2]
        raise UserError(said or f"device={device!r}: not there")
    return done.stdout.strip()
