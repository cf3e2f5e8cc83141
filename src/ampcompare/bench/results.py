"""What every benchmark does with its figures: medians with intervals, files that say where they are from."""

from __future__ import annotations

import json
import math
import os
import re
import statistics
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from ampcompare.errors import UserError, reason
from ampcompare.report.charts.draw import VEGA_LITE

CONFIDENCE = 0.95


@dataclass(frozen=True)
class Median:
    """A median and its interval. `coverage` is the chance that such an interval holds the true median."""

    n: int
    median: float
    low: float
    high: float
    coverage: float

    def __str__(self) -> str:
        return f"{_short(self.median)} ({_short(self.low)} to {_short(self.high)})"


def estimate(values: Sequence[float]) -> Median:
    """The median with the narrowest interval between order statistics that has 95 % coverage.

    It supposes nothing of how the values are spread. Below six values none reaches 95 %: then it is their
    range, and `coverage` says how little that is (five: 94 %, three: 75 %, one: none).
    """
    ordered, n = sorted(values), len(values)

    def coverage(k: int) -> float:
        return 1 - 2 * sum(math.comb(n, i) for i in range(k)) / 2**n

    k = max((k for k in range(1, n // 2 + 1) if coverage(k) >= CONFIDENCE), default=1)
    return Median(n, statistics.median(ordered), ordered[k - 1], ordered[n - k], max(0.0, coverage(k)))


def _short(x: float) -> str:
    return f"{x:,.0f}" if abs(x) >= 1000 else f"{x:.3g}" if abs(x) < 10 else f"{x:.1f}"


def header(environment: Mapping[str, Any]) -> dict[str, Any]:
    """When, where and with what: what every results file begins with."""
    load = os.getloadavg()[0] if hasattr(os, "getloadavg") else None
    date = datetime.now(UTC).isoformat(timespec="seconds")
    return {"date": date, "load": load, "environment": dict(environment)}


def machine_words(head: Mapping[str, Any]) -> str:
    """One line of prose: device, versions, commit, how busy the machine was."""
    e = head["environment"]
    driver = f", driver {e['driver']}, CUDA {e['cuda']}, cuDNN {e['cudnn']}" if e.get("driver") else ""
    load = head["load"]
    busy = "" if load is None else f", load average {load:.1f} on {e['cpu_count']} CPUs at the end"
    return (
        f"{e['device_name']}, torch {e['torch']}{driver}, Python {e['python']}, {e['cpu_threads']} CPU "
        f"threads{busy}; {head['date']}, commit {e['git_commit'] or 'unknown'}"
    )


def write_results(
    folder: Path,
    name: str,
    head: Mapping[str, Any],
    body: Mapping[str, Any],
    markdown: str,
    make_chart: Callable[[], dict[str, Any]] | None = None,
) -> list[Path]:
    """`NAME-DEVICE-DATE.json` with everything, `.md` for readers, and the chart's `.svg`. Raises UserError.

    `make_chart` gives it as Vega-Lite. It comes last: what was measured is kept also where its renderer is
    not installed.
    """
    device = re.sub(r"[^a-z0-9]+", "-", str(head["environment"]["device_name"]).lower()).strip("-")[:40]
    day = re.sub(r"[^0-9T]", "", head["date"].partition("+")[0])
    stem = f"{name}-{device}-{day}"
    paths = [folder / f"{stem}.json", folder / f"{stem}.md"]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        paths[0].write_text(json.dumps({**head, **body}, indent=1, default=_plain) + "\n")
        paths[1].write_text(f"{markdown.rstrip()}\n\n{machine_words(head)}\n")
        if make_chart is not None:
            import vl_convert

            drawn = vl_convert.vegalite_to_svg(make_chart(), vl_version=VEGA_LITE)
            (folder / f"{stem}.svg").write_text(drawn, "utf-8")
            paths.append(folder / f"{stem}.svg")
    except ImportError as problem:
        print(f"no chart of {paths[0]}: {problem}", file=sys.stderr)
    except OSError as problem:
        why = f"cannot be written ({reason(problem)})"
        raise UserError(f"--out {str(folder)!r}: {why}; give another folder") from None
    return paths


def _plain(value: Any) -> Any:
    if isinstance(value, Median):
        return asdict(value)
    raise TypeError(f"no JSON for {type(value).__name__}")


def markdown_table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = ["| " + " | ".join(columns) + " |", "|---" + "|---:" * (len(columns) - 1) + "|"]
    return "\n".join([*lines, *("| " + " | ".join(row) + " |" for row in rows)])
