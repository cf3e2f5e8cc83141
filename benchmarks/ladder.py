#!/usr/bin/env python3
"""Make the speed ladder of a folder of results: one rung per backend, layout and execution.

    python benchmarks/ladder.py docs/results/2026-11-26-h200

Reads `measurements.yaml` and the files that it names, prints the ladder as a Markdown table and writes
`ladder.json` and `ladder.png` beside it. `measurements.yaml` holds, for each file, what the program did not
record: the memory layout and the TF32 setting.
"""

import argparse
import io
import json
import sys
import tarfile
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import geometric_mean
from typing import Any

import yaml
from PIL import Image

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "src")]

from ampcompare import load_runs, metrics  # noqa: E402
from ampcompare.report.charts import vega  # noqa: E402
from ampcompare.report.palette import choose_styles  # noqa: E402
from ampcompare.runs import RunRecord  # noqa: E402

STRICT, TF32 = "none", "tf32"
LAYOUTS = ("contiguous", "channels_last")
EXECUTIONS = ("eager", "cuda_graph", "compile_graph")
ROW_PIXELS = 21
BENCH, RUNS = "bench", "runs"


@dataclass(frozen=True)
class Measurement:
    """One rate as one file has it.

    Attributes:
        rung: Backend, memory layout and execution.
        images_per_second: The bench's rate, or the geometric mean of the runs' median rates.
        source: Name of the file, or of the folder in `records.tar.xz`.
        kind: `bench` or `runs`.
        n: Number of runs, or of the bench's rounds.
        ratio: Speed-up over the baseline of the same file, with `low` and `high` where the file has them.
        is_baseline: Whether the file's ratios are relative to this measurement.
    """

    rung: tuple[str, str, str]
    images_per_second: float
    source: str
    kind: str
    n: int
    ratio: float | None = None
    low: float | None = None
    high: float | None = None
    is_baseline: bool = False


@dataclass(frozen=True)
class Relative:
    """A rate relative to another; `low` and `high` where the interval was measured.

    Attributes:
        sources: The file of both rates, or the two files.
    """

    value: float
    low: float | None
    high: float | None
    sources: tuple[str, ...]


@dataclass(frozen=True)
class Rung:
    """A backend in a layout and an execution: its rate, and the rate relative to strict fp32 and to TF32."""

    backend: str
    memory_format: str
    execution: str
    images_per_second: float
    kind: str
    source: str
    to_strict: Relative | None
    to_tf32: Relative | None
    others: tuple[tuple[str, float], ...]


def read_measurements(folder: Path) -> list[Measurement]:
    """Return every rate of the files that `measurements.yaml` names as part of the ladder, in its order."""
    described = yaml.safe_load((folder / "measurements.yaml").read_text())
    found: list[Measurement] = []
    with tempfile.TemporaryDirectory() as unpacked:
        with tarfile.open(folder / "records.tar.xz") as packed:
            packed.extractall(unpacked, filter="data")
        for name, about in described["files"].items():
            if about.get("ladder") == BENCH:
                found += _of_bench(name, json.loads((folder / name).read_text()), about)
            elif about.get("ladder") == RUNS:
                found += _of_runs(name, load_runs([Path(unpacked) / name]))
    return found


def _of_bench(name: str, bench: dict[str, Any], about: dict[str, Any]) -> Iterator[Measurement]:
    for arm in bench["arms"]:
        options = arm["options"]
        if arm["failed"] or "execution" not in options:  # other people's loops have no execution
            continue
        backend = TF32 if options["backend"] == STRICT and about["tf32"] else options["backend"]
        rung = (backend, about["memory_format"], options["execution"])
        is_baseline = arm["label"] == bench["baseline"]
        span = (arm["ratio"], arm["low"], arm["high"])
        yield Measurement(
            rung, arm["images_per_second"], name, BENCH, arm["rounds"], *span, is_baseline=is_baseline
        )


def _of_runs(name: str, runs: Sequence[RunRecord]) -> Iterator[Measurement]:
    rates: dict[tuple[str, str, str], list[float]] = {}
    for run in runs:
        rung = (run.config["backend"], run.config["memory_format"], run.config["execution"])
        rate = run.summary_number(metrics.THROUGHPUT_MEDIAN)
        if rate is not None:
            rates.setdefault(rung, []).append(rate)
    for rung, each in rates.items():
        yield Measurement(rung, geometric_mean(each), name, RUNS, len(each))


def build_ladder(measurements: Sequence[Measurement]) -> list[Rung]:
    """Return one rung per combination: with the rate of the first file that has it."""
    of: dict[tuple[str, str, str], list[Measurement]] = {}
    for measured in measurements:
        of.setdefault(measured.rung, []).append(measured)
    rungs = []
    for (backend, layout, execution), found in of.items():
        first, *others = found
        rungs.append(
            Rung(
                backend=backend,
                memory_format=layout,
                execution=execution,
                images_per_second=first.images_per_second,
                kind=first.kind,
                source=first.source,
                to_strict=_relative(found, of.get((STRICT, layout, execution), ())),
                to_tf32=_relative(found, of.get((TF32, layout, execution), ())),
                others=tuple((other.source, other.images_per_second) for other in others),
            )
        )
    ranks = [*STYLES]

    def order(rung: Rung) -> tuple[int, int, int]:
        place = LAYOUTS.index(rung.memory_format), EXECUTIONS.index(rung.execution)
        return *place, ranks.index(rung.backend)

    return sorted(rungs, key=order)


def _relative(found: Sequence[Measurement], bases: Sequence[Measurement]) -> Relative | None:
    """Return the rate relative to a base, from the first file that has both, else from the first of each."""
    if not bases or found[0].rung == bases[0].rung:
        return None
    for measured in found:
        base = next((base for base in bases if base.source == measured.source), None)
        if base is None:
            continue
        if measured.ratio is None or not base.ratio:
            return Relative(
                measured.images_per_second / base.images_per_second, None, None, (measured.source,)
            )
        low, high = (measured.low, measured.high) if base.is_baseline else (None, None)
        return Relative(measured.ratio / base.ratio, low, high, (measured.source,))
    measured, base = found[0], bases[0]
    if measured.kind != base.kind:
        return None
    value = measured.images_per_second / base.images_per_second
    return Relative(value, None, None, (measured.source, base.source))


LABELS = ("none", "tf32", "native", "apex_o1", "apex_o2", "native_bf16", "fp16")
STYLES = choose_styles([(label, label) for label in LABELS])
NAMES = {STRICT: "none (strict fp32)"}


def to_markdown(ladder: Sequence[Rung]) -> str:
    """Return the ladder as a Markdown table."""
    rows = [
        "| backend | layout | execution | images/s | relative to strict fp32 | relative to TF32 | source |",
        "|---|---|---|---:|---:|---:|---|",
    ]
    for rung in ladder:
        others = "".join(f"; {rate:,.0f} in {_source(name)}" for name, rate in rung.others)
        source = f"{'median of a run' if rung.kind == RUNS else 'bench'}, {_source(rung.source)}{others}"
        cells = [
            f"`{rung.backend}`",
            rung.memory_format,
            f"`{rung.execution}`",
            f"{rung.images_per_second:,.0f}",
            "baseline" if rung.backend == STRICT else _shown(rung.to_strict),
            "baseline" if rung.backend == TF32 else _shown(rung.to_tf32),
            source,
        ]
        rows.append(f"| {' | '.join(cells)} |")
    return "\n".join(rows) + "\n"


def _source(name: str) -> str:
    return f"[`{name}`]({name})" if name.endswith(".json") else f"`records/{name}`"


def _shown(relative: Relative | None) -> str:
    if relative is None:
        return "not measured"
    span = "" if relative.low is None else f" ({relative.low:.2f} to {relative.high:.2f})"
    return f"{relative.value:.2f}×{span}{' †' if len(relative.sources) > 1 else ''}"


def to_chart(ladder: Sequence[Rung], title: str, subtitle: str) -> vega.Spec:
    """Return the ladder as bars, the fastest first. Labels name all, so no colour has to be told apart."""
    ranked = sorted(ladder, key=lambda rung: -rung.images_per_second)
    rows = [
        {
            "arm": rung.backend,
            "rung": f"{NAMES.get(rung.backend, rung.backend)} · {rung.memory_format} · {rung.execution}",
            "rate": round(rung.images_per_second),
        }
        for rung in ranked
    ]
    y = {"field": "rung", "type": "nominal", "sort": None, "axis": {"title": None, "labelLimit": 300}}
    x = vega.quantity("rate", {"grid": True, "title": "images/s"}, zero=True)
    colour = {
        "field": "arm",
        "type": "nominal",
        "legend": None,
        "scale": {"domain": [*LABELS], "range": [STYLES[label].colour for label in LABELS]},
    }
    bars = {
        "mark": {"type": "bar", "height": {"band": 0.7}},
        "encoding": {"x": x, "y": y, "color": colour},
    }
    label = {"field": "rate", "type": "quantitative", "format": ",d"}
    texts = {
        "mark": {"type": "text", "align": "left", "dx": 4, "fontSize": 11},
        "encoding": {"x": x, "y": y, "text": label},
    }
    more = {"height": ROW_PIXELS * len(rows), "encoding": {}}
    return vega.chart(title, subtitle, [bars, texts], rows, **more)


def _smaller(png: bytes) -> bytes:
    """Return the picture at half its size and in 128 colours: a tenth of the bytes."""
    picture = Image.open(io.BytesIO(png)).convert("RGB")
    half = picture.resize((picture.width // 2, picture.height // 2), Image.Resampling.LANCZOS)
    found = io.BytesIO()
    half.quantize(128).save(found, "png", optimize=True)
    return found.getvalue()


def main() -> None:
    """Print the table; write `ladder.json` and `ladder.png`."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("folder", type=Path, help="the folder with measurements.yaml")
    folder: Path = parser.parse_args().folder
    text = yaml.safe_load((folder / "measurements.yaml").read_text())["chart"]
    ladder = build_ladder(read_measurements(folder))
    content = json.dumps([asdict(rung) for rung in ladder], indent=1)
    (folder / "ladder.json").write_text(content + "\n")
    spec = to_chart(ladder, text["title"], text["subtitle"])
    (folder / "ladder.png").write_bytes(_smaller(vega.picture(spec, "png")))
    sys.stdout.write(to_markdown(ladder))


if __name__ == "__main__":
    main()
