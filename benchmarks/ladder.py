#!/usr/bin/env python3
"""Make the tables and the chart of training speed of a folder of results.

    python benchmarks/ladder.py docs/results/2026-11-26-h200

Reads `measurements.yaml` and the files that it names, prints the tables in Markdown and writes `ladder.png`.
A rung of the ladder is a backend in an execution and a memory layout. The first file that has a rung gives
its rate; the other files show how well the rate repeats. Old bench files hold neither layout nor TF32
setting: `measurements.yaml` says both for them.
"""

import argparse
import io
import json
import sys
import tarfile
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import geometric_mean
from typing import Any

import yaml
from PIL import Image

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "src")]

from ampcompare import load_runs, metrics  # noqa: E402
from ampcompare.analysis.grouping.groups import Kind  # noqa: E402
from ampcompare.report.charts import vega  # noqa: E402
from ampcompare.report.palette import choose_styles  # noqa: E402
from ampcompare.runs import RunRecord  # noqa: E402

STRICT, TF32 = "none", "tf32"
BACKENDS = (STRICT, TF32, "native", "apex_o1", "native_bf16", "apex_o2", "fp16")
NAMES = {
    STRICT: "none (strict fp32)",
    TF32: "tf32 (fp32 with TF32)",
    "native": "native (fp16 autocast)",
    "apex_o1": "apex_o1 (fp16)",
    "native_bf16": "native_bf16 (bf16 autocast)",
}
EXECUTIONS = ("eager", "cuda_graph", "compile_graph")
LAYOUTS = ("contiguous", "channels_last")
ABSENT = "–"


@dataclass(frozen=True)
class Measurement:
    """One rate as one file has it.

    Attributes:
        images_per_second: The bench's rate, or the geometric mean of the runs' median rates.
        peak_mib: Peak memory in MiB.
        source: Name of the bench file, or of the folder in `records.tar.xz`.
        ratio: Speed-up over the baseline of the same bench file, with its interval; None for runs.
        is_baseline: Whether the ratios of the file are relative to this measurement.
    """

    backend: str
    execution: str
    memory_format: str
    images_per_second: float
    peak_mib: float
    source: str
    ratio: tuple[float, float, float] | None = None
    is_baseline: bool = False

    @property
    def setting(self) -> tuple[str, str]:
        """Return execution and layout."""
        return self.execution, self.memory_format


@dataclass(frozen=True)
class Relative:
    """A rate relative to another of the same file; `low` and `high` where the file has the interval."""

    value: float
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True)
class Rung:
    """A backend in an execution and a layout.

    Attributes:
        measured: The measurement that counts.
        to_strict: The rate relative to strict fp32 in the same setting and file.
        to_tf32: The rate relative to TF32 in the same setting and file.
        interval: The interval of the rate: that of the file's ratio times the rate of the file's baseline.
        repeats: The same in other files.
    """

    measured: Measurement
    to_strict: Relative | None
    to_tf32: Relative | None
    interval: tuple[float, float] | None
    repeats: tuple[Measurement, ...]


def read_measurements(folder: Path) -> list[Measurement]:
    """Return every rate of the files that `measurements.yaml` marks with `ladder: true`, in its order."""
    described = yaml.safe_load((folder / "measurements.yaml").read_text())
    found: list[Measurement] = []
    with tempfile.TemporaryDirectory() as unpacked:
        with tarfile.open(folder / "records.tar.xz") as packed:
            packed.extractall(unpacked, filter="data")
        for name, about in described["files"].items():
            if not about.get("ladder"):
                continue
            if name.endswith(".json"):
                found += _of_bench(name, json.loads((folder / name).read_text()), about)
            else:
                found += _of_runs(name, load_runs([Path(unpacked) / name]))
    return found


def _of_bench(name: str, bench: dict[str, Any], about: dict[str, Any]) -> Iterator[Measurement]:
    for arm in bench["arms"]:
        options = arm["options"]
        if arm["failed"] or "execution" not in options:  # other people's loops have no execution
            continue
        backend = TF32 if options["backend"] == STRICT and about.get("tf32") else options["backend"]
        yield Measurement(
            backend,
            options["execution"],
            options.get("memory_format") or about["memory_format"],
            arm["images_per_second"],
            arm["peak_mib"],
            name,
            (arm["ratio"], arm["low"], arm["high"]),
            is_baseline=arm["label"] == bench["baseline"],
        )


def _of_runs(name: str, runs: Sequence[RunRecord]) -> Iterator[Measurement]:
    values: dict[tuple[str, str, str], list[tuple[float, float]]] = {}
    for run in runs:
        rung = (run.config["backend"], run.config["execution"], run.config["memory_format"])
        rate, peak = (run.summary_number(key) for key in (metrics.THROUGHPUT_MEDIAN, metrics.PEAK_MEMORY))
        if rate is not None and peak is not None:
            values.setdefault(rung, []).append((rate, peak))
    for rung, each in values.items():
        rates, peaks = zip(*each, strict=True)
        yield Measurement(*rung, geometric_mean(rates), geometric_mean(peaks), name)


def build_ladder(measurements: Sequence[Measurement]) -> list[Rung]:
    """Return the rungs, by setting and then by backend."""
    of: dict[tuple[str, str, str], list[Measurement]] = {}
    for measured in measurements:
        of.setdefault((measured.backend, *measured.setting), []).append(measured)
    rungs = []
    for first, *repeats in of.values():
        neighbours = [other for other in measurements if other.source == first.source]
        bases = {other.backend: other for other in neighbours if other.setting == first.setting}
        baseline = next((other for other in neighbours if other.is_baseline), None)
        interval = None
        if first.ratio is not None and baseline is not None:
            interval = (
                first.ratio[1] * baseline.images_per_second,
                first.ratio[2] * baseline.images_per_second,
            )
        rungs.append(
            Rung(
                first,
                _relative(first, bases.get(STRICT)),
                _relative(first, bases.get(TF32)),
                interval,
                tuple(repeats),
            )
        )
    return sorted(rungs, key=lambda rung: (*_place(rung.measured.setting), _rank(rung.measured.backend)))


def _place(setting: tuple[str, str]) -> tuple[int, int]:
    return EXECUTIONS.index(setting[0]), LAYOUTS.index(setting[1])


def _rank(backend: str) -> int:
    return BACKENDS.index(backend)


def _relative(measured: Measurement, base: Measurement | None) -> Relative | None:
    if base is None or measured.backend in (base.backend, STRICT):
        return None
    if measured.ratio is None or base.ratio is None:
        return Relative(measured.images_per_second / base.images_per_second)
    _, low, high = measured.ratio
    return Relative(measured.ratio[0] / base.ratio[0], *((low, high) if base.is_baseline else ()))


def rates_table(ladder: Sequence[Rung]) -> str:
    """Return images/s: a row per backend, a column per setting."""
    return _table(ladder, lambda rung: f"{rung.measured.images_per_second:,.0f}")


def memory_table(ladder: Sequence[Rung]) -> str:
    """Return peak memory in MiB."""
    return _table(ladder, lambda rung: f"{rung.measured.peak_mib:,.0f}")


def strict_table(ladder: Sequence[Rung]) -> str:
    """Return the rates relative to strict fp32 in the same setting."""
    return _table(ladder, lambda rung: _shown(rung, STRICT, rung.to_strict))


def tf32_table(ladder: Sequence[Rung]) -> str:
    """Return the rates relative to TF32 in the same setting."""
    return _table(ladder, lambda rung: _shown(rung, TF32, rung.to_tf32))


def _shown(rung: Rung, baseline: str, relative: Relative | None) -> str:
    if rung.measured.backend == baseline:
        return "baseline"
    if relative is None:
        return ABSENT
    span = "" if relative.low is None else f" ({relative.low:.2f} to {relative.high:.2f})"
    return f"{relative.value:.2f}×{span}"


def _table(ladder: Sequence[Rung], cell: Callable[[Rung], str]) -> str:
    """Return a Markdown table of the rungs; rows and columns without any value are left out."""
    cells = {(rung.measured.backend, rung.measured.setting): cell(rung) for rung in ladder}
    filled = [key for key, text in cells.items() if text not in (ABSENT, "baseline")]
    settings = sorted({setting for _, setting in filled}, key=_place)
    backends = [x for x in BACKENDS if any(backend == x for backend, _ in cells)]
    rows = [
        ["backend", *(f"`{execution}`, {layout}" for execution, layout in settings)],
        ["---", *("---:" for _ in settings)],
    ]
    for backend in backends:
        row = [cells.get((backend, setting), ABSENT) for setting in settings]
        if {*row} != {ABSENT}:
            rows.append([f"`{backend}`", *row])
    return "".join(f"| {' | '.join(row)} |\n" for row in rows)


def bench_table(bench: dict[str, Any]) -> str:
    """Return one bench file as a table: its baseline is strict fp32."""
    arms = {arm["options"]["backend"]: arm for arm in bench["arms"]}
    rows = [
        "| backend | images/s | relative to strict fp32 | relative to TF32 | peak memory, MiB |",
        "|---|---:|---:|---:|---:|",
    ]
    for backend, arm in arms.items():
        strict = f"{arm['ratio']:.2f}× ({arm['low']:.2f} to {arm['high']:.2f})"
        tf32 = f"{arm['ratio'] / arms[TF32]['ratio']:.2f}×"
        cells = [
            f"`{backend}`",
            f"{arm['images_per_second']:,.0f}",
            "baseline" if backend == STRICT else strict,
            {STRICT: ABSENT, TF32: "baseline"}.get(backend, tf32),
            f"{arm['peak_mib']:,.0f}",
        ]
        rows.append(f"| {' | '.join(cells)} |")
    return "\n".join(rows) + "\n"


def repeats_table(ladder: Sequence[Rung]) -> str:
    """Return the rungs that several files have."""
    rows = ["| backend | execution, layout | images/s in the ladder | measured again |", "|---|---|---:|---|"]
    for rung in ladder:
        own = rung.measured
        again = (f"{x.images_per_second:,.0f} ({_source(x.source)})" for x in rung.repeats)
        if rung.repeats:
            rate = f"{own.images_per_second:,.0f}"
            rows.append(
                f"| `{own.backend}` | `{own.execution}`, {own.memory_format} | {rate} | {', '.join(again)} |"
            )
    return "\n".join(rows) + "\n"


def _source(name: str) -> str:
    return f"[`{name}`]({name})" if name.endswith(".json") else f"`records/{name}`"


def to_markdown(ladder: Sequence[Rung]) -> dict[str, str]:
    """Return all tables by what they show."""
    return {
        "images/s": rates_table(ladder),
        "relative to strict fp32": strict_table(ladder),
        "relative to TF32": tf32_table(ladder),
        "peak memory, MiB": memory_table(ladder),
        "repeats": repeats_table(ladder),
    }


BAR, GAP, HEIGHT = 46, 0.16, 330  # pixels; GAP is a fraction of BAR
LABEL_SIZE = 12


def to_chart(ladder: Sequence[Rung], title: str, subtitle: Sequence[str]) -> vega.Spec:
    """Return bars, grouped by setting: those settings and backends that have all of each other."""
    of: dict[tuple[str, str], dict[str, Rung]] = {}
    for rung in ladder:
        of.setdefault(rung.measured.setting, {})[rung.measured.backend] = rung
    groups = {setting: rungs for setting, rungs in of.items() if {STRICT, TF32} <= rungs.keys()}
    backends = [x for x in BACKENDS if all(x in rungs for rungs in groups.values())]
    rows = []
    for (execution, layout), rungs in groups.items():
        for backend in backends:
            rung = rungs[backend]
            rate = rung.measured.images_per_second
            low, high = rung.interval or (rate, rate)
            rows.append(
                {
                    "group": f"{execution}|{layout}",
                    "backend": NAMES.get(backend, backend),
                    "rate": round(rate),
                    "low": low,
                    "high": max(high, rate),
                    "strict": "1×" if rung.to_strict is None else f"{rung.to_strict.value:.2f}×",
                    "tf32": rungs[TF32].measured.images_per_second,
                }
            )
    styles = choose_styles([(backend, backend, Kind.ARM) for backend in BACKENDS])
    shown = [NAMES.get(backend, backend) for backend in backends]
    colour = {"domain": shown, "range": [styles[backend].colour for backend in backends]}
    legend = {"orient": "top", "title": None, "labelFontSize": 14, "symbolType": "square", "symbolSize": 180}
    x = {"field": "backend", "type": "nominal", "sort": shown, "axis": None, "scale": {"paddingInner": GAP}}
    axis = {"title": "images/s", "format": ",d", "grid": True, "labelFontSize": 12, "titleFontSize": 13}
    y = {"field": "rate", "type": "quantitative", "axis": axis, "scale": {"domain": [0, 20_500]}}
    layers = [
        {
            "mark": {"type": "bar"},
            "encoding": {
                "x": x,
                "y": y,
                "color": {"field": "backend", "type": "nominal", "scale": colour, "legend": legend},
            },
        },
        {
            "mark": {"type": "rule", "strokeDash": [5, 4], "color": styles[TF32].colour, "strokeWidth": 2},
            "encoding": {"y": {"aggregate": "max", "field": "tf32", "type": "quantitative"}},
        },
        {
            "mark": {"type": "rule", "strokeWidth": 1.5, "color": "#1c2330"},
            "encoding": {"x": x, "y": {"field": "low", "type": "quantitative"}, "y2": {"field": "high"}},
        },
        *_label(x, {"field": "rate", "type": "quantitative", "format": ",d"}, -4),
        *_label(x, {"field": "strict"}, -LABEL_SIZE - 7, fontWeight="bold"),
    ]
    header = {
        "title": None,
        "labelExpr": "split(datum.label, '|')",
        "labelFontSize": 14,
        "labelOrient": "bottom",
    }
    names = ["|".join(setting) for setting in groups]
    config = vega.config("#1c2330", "#5b6472", "#dfe3e9", "white", vega.FONT)
    config["title"] |= {"fontSize": 20, "subtitleFontSize": 14, "subtitlePadding": 8}
    config["legend"] |= {"labelLimit": 300}
    return {
        "$schema": vega.SCHEMA,
        "background": "white",
        "padding": 14,
        "title": {"text": title, "subtitle": list(subtitle)},
        "data": {"values": rows},
        "facet": {"column": {"field": "group", "type": "nominal", "sort": names, "header": header}},
        "spacing": 22,
        "spec": {"width": BAR * len(backends), "height": HEIGHT, "layer": layers},
        "config": config,
    }


def _label(x: vega.Spec, text: vega.Spec, dy: int, **more: Any) -> Iterator[vega.Spec]:
    """Yield two layers, a text above the bars and under it a white edge against crossing lines."""
    y = {"field": "high", "type": "quantitative"}
    for edge in ({"stroke": "white", "strokeWidth": 4}, {}):
        mark = {"type": "text", "baseline": "bottom", "fontSize": LABEL_SIZE, "dy": dy, **more, **edge}
        yield {"mark": mark, "encoding": {"x": x, "y": y, "text": text}}


def _smaller(png: bytes) -> bytes:
    """Return the picture at half its size and in 128 colours: a tenth of the bytes."""
    picture = Image.open(io.BytesIO(png)).convert("RGB")
    half = picture.resize((picture.width // 2, picture.height // 2), Image.Resampling.LANCZOS)
    found = io.BytesIO()
    half.quantize(128).save(found, "png", optimize=True)
    return found.getvalue()


def main() -> None:
    """Print the tables; write `ladder.png`."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("folder", type=Path, help="the folder with measurements.yaml")
    folder: Path = parser.parse_args().folder
    text = yaml.safe_load((folder / "measurements.yaml").read_text())["chart"]
    ladder = build_ladder(read_measurements(folder))
    spec = to_chart(ladder, text["title"], text["subtitle"])
    (folder / "ladder.png").write_bytes(_smaller(vega.draw(spec, ["png"])["png"]))
    for title, table in to_markdown(ladder).items():
        sys.stdout.write(f"{title}\n\n{table}\n")
    if (folder / "transformer.json").exists():
        sys.stdout.write(
            f"transformer\n\n{bench_table(json.loads((folder / 'transformer.json').read_text()))}"
        )


if __name__ == "__main__":
    main()
