"""What `ampcompare bench` says of what it measured: table, sentences, chart, JSON."""

import dataclasses
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from rich.table import Table

from ampcompare.bench.compare import CONTROL, LOOKS, Arm, Benchmark, Row
from ampcompare.errors import UserError, one_line, reason
from ampcompare.program.place import as_typed
from ampcompare.report import numbers as say

COLUMNS = ("", "images/s", "ms a step", "speed-up", "interval", "peak MiB", "rounds")
# ms: on two shared cores processes of one training with steps of 3 ms differed by up to 1.4 times, at 12 not.
SHORT = 10


def table(found: Benchmark) -> Table:
    """A row an arm, the control last."""
    shown = Table(box=None, header_style="bold", pad_edge=False)
    for number, column in enumerate(COLUMNS):
        shown.add_column(column, justify="right" if number else "left", overflow="fold")
    for row in (*found.arms, found.control):
        if row.failed:
            shown.add_row(one_line(row.label), "failed", *[""] * (len(COLUMNS) - 2))
            continue
        peak = "" if row.peak_mib is None else f"{row.peak_mib:,.0f}"
        rate, step = say.number(row.images_per_second), say.number(row.step_ms)
        own = row is found.arms[0]
        span = "" if own else _span(row) or "not known"
        shown.add_row(one_line(row.label), rate, step, f"{row.ratio:.2f}x", span, peak, str(row.rounds))
    return shown


def _span(row: Row) -> str:
    return "" if row.low is None else f"{row.low:.2f} to {row.high:.2f}"


def sentences(found: Benchmark, arms: Sequence[Arm]) -> Iterator[str]:
    """What is to be known of the table, and what to do next."""
    base, *others = found.arms
    yield f"{machine_of(found)}. Medians over rounds; batches lie in memory: loading data is not in it."
    if not found.control.failed:
        yield _on_control(found.control, base)
    for row in (*found.arms, found.control):
        if row.failed:
            yield f"{row.label}: {row.failed}"
    if any(row.step_ms and row.step_ms < SHORT for row in found.arms):
        yield f"Steps below {SHORT} ms: how processes differ is in no interval (1.4x on a CPU)."
    emulated = dict.fromkeys(row.about["dtype"] for row in found.arms if row.about.get("is_emulated"))
    if emulated:
        yield f"{' and '.join(emulated)}: emulated on this processor, which says nothing of a GPU's speed."
    if vague := [row.label for row in (*others, found.control) if not row.failed and not row.is_known()]:
        told = f"Not known within 5 %: {', '.join(vague)}"
        if base.rounds < LOOKS[-1]:
            yield f"{told}; --minutes {max(2, round(4 * found.minutes))} tells more."
        else:
            yield f"{told}, after {base.rounds} rounds: the machine is uneven, or has other work."
    measured = [row for row in others if not row.failed]
    if measured:
        slowest = min(measured, key=lambda row: row.ratio or 0.0)
        given = next(arm.words for arm in arms if arm.label == slowest.label)
        if (slowest.high or slowest.ratio or 0.0) < 1 and not slowest.about.get("is_emulated"):
            yield f"Why {slowest.label} is no faster: {as_typed('ampcompare', 'why', 'explain', *given)}"


def _on_control(control: Row, base: Row) -> str:
    said = f"The control, {base.label} once more, is {control.ratio:.2f}x"
    if control.low is None or control.high is None:
        return f"{said}: what is nearer to 1 may be chance; there is no interval below twelve rounds."
    if control.low <= 1 <= control.high:
        return f"{said} ({_span(control)}), as it should be: the intervals hold together in 95 %."
    return f"{said} ({_span(control)}): this machine is uneven, and differences of that size say nothing."


def machine_of(found: Benchmark) -> str:
    """The processor or GPU, its threads and PyTorch's version."""
    e = found.arms[0].about["environment"]
    threads = f", {e['cpu_threads']} threads" if e["device_type"] == "cpu" else ""
    return f"{e['device_name']}{threads}, torch {e['torch']}"


def as_json(found: Benchmark) -> dict[str, Any]:
    """All of it, for programs and for `ampcompare report --bench`."""
    return {
        "baseline": found.arms[0].label,
        "level": found.level,
        "machine": machine_of(found),
        "minutes": found.minutes,
        "control": _as_arm(found.control),
        "device": found.arms[0].about["environment"]["device_name"],
        "arms": [_as_arm(row) for row in found.arms],
    }


def _as_arm(row: Row) -> dict[str, Any]:
    about, fields = row.about, dataclasses.asdict(row)
    del fields["about"]
    return fields | {"options": row.options | about.get("settings", {})}


def draw(found: Benchmark, path: Path) -> None:
    """The speed-ups as bars with their intervals, PNG or SVG by the file's name. Raises UserError."""
    from ampcompare.report.charts.draw import GREY, chart, picture, quantity

    kind = path.suffix.lower().removeprefix(".")
    values = [
        {"label": row.label, "ratio": row.ratio, "low": row.low, "high": row.high}
        | {"end": max(row.ratio or 0, row.high or 0), "told": f"{row.ratio:.2f}x"}
        for row in (*found.arms[1:], found.control)
        if not row.failed
    ]
    colour = {"condition": {"test": f"datum.label === '{CONTROL}'", "value": GREY}, "value": "#0072b2"}
    end, nominal = {"field": "end", "type": "quantitative"}, {"type": "nominal"}
    span = {"x": quantity("low"), "x2": {"field": "high"}, "color": {"value": "#1c2330"}}
    same = {"x": {"datum": 1}, "y": None, "color": {"value": GREY}}
    layers = [
        {"mark": {"type": "bar", "height": 18}, "encoding": {"color": colour}},
        {"mark": {"type": "rule", "strokeDash": [4, 3]}, "encoding": same},
        {"mark": {"type": "rule", "strokeWidth": 2}, "encoding": span},
        {
            "mark": {"type": "text", "align": "left", "dx": 8, "fontSize": 12},
            "encoding": {"x": end, "text": {"field": "told"} | nominal},
        },
    ]
    own = {"field": "label", "sort": None, "title": None, "axis": {"labelLimit": 220}} | nominal
    spec = chart(
        f"Images a second, times those of {found.arms[0].label}",
        f"measured in turns, intervals that hold together in 95 %; {machine_of(found)}",
        layers,
        values,
        encoding={"y": own, "x": quantity("ratio", zero=True)},
        height={"step": 34},
    )
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(picture(spec, kind))
    except (OSError, ValueError) as problem:
        raise UserError(f"--chart {str(path)!r}: cannot be written ({reason(problem)})") from None
