"""The charts of the page as W&B custom charts: the same specification over the fields of W&B's table."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from ampcompare.report.charts.parts import DATA, RUNS, Spec
from ampcompare.report.charts.series import Datum

# What a chart's own code may refer to in a row; `datum.value` in the labels of an axis is no field of ours.
IN_ROWS = re.compile(r"datum\.(kind|place|low|inner_low|n|text)\b")


def custom_chart(spec: Spec) -> Spec:
    """The specification for W&B: data from the table W&B hands over, each field `x` as `${field:x}`."""
    chart = {key: _with_fields(value) for key, value in spec.items() if key != "datasets"}
    chart["data"] = {"name": "wandb"}
    for layer in chart["layer"]:
        if layer.get("data") == {"name": DATA}:
            del layer["data"]
    for param in chart.get("params", []):
        if param["name"] == RUNS:  # the page has a switch for all charts at once
            param["bind"] = {"input": "checkbox", "name": "single runs "}
    return chart


def columns_of(rows: Sequence[Datum]) -> list[str]:
    """The columns of a chart's table, in order of appearance."""
    return list(dict.fromkeys(name for row in rows for name in row))


def table_of(rows: Sequence[Datum]) -> tuple[list[str], list[list[Any]]]:
    """Columns and cells of the table that a chart draws; None where a row has no value."""
    columns = columns_of(rows)
    return columns, [[row.get(name) for name in columns] for row in rows]


def preset_name(name: str, chart: Mapping[str, Any]) -> str:
    """The name under which W&B keeps the chart: another specification is another preset."""
    text = json.dumps(chart, sort_keys=True, ensure_ascii=True)
    return f"ampcompare-{name}-{hashlib.sha256(text.encode()).hexdigest()[:8]}"


def _with_fields(value: Any) -> Any:
    if isinstance(value, list):
        return [_with_fields(inner) for inner in value]
    if not isinstance(value, Mapping):
        return value
    found: dict[str, Any] = {}
    for key, inner in value.items():
        if key == "field" and isinstance(inner, str):
            found[key] = _field(inner)
        elif key == "fields" and isinstance(inner, list):
            found[key] = [_field(name) for name in inner]
        elif key == "filter" and isinstance(inner, str):
            found[key] = IN_ROWS.sub(lambda match: f"datum['{_field(match[1])}']", inner)
        else:
            found[key] = _with_fields(inner)
    return found


def _field(name: str) -> str:
    return f"${{field:{name}}}"
