"""The list of metrics and the table of docs/metrics.md say the same."""

from __future__ import annotations

import ast
import re

from support.quick import ROOT

from ampcompare import metrics


def test_the_table_of_the_docs_has_every_metric_with_its_unit_and_time():
    told = {}
    for line in (ROOT / "docs" / "metrics.md").read_text().splitlines():
        if line.startswith("| `"):
            keys, _, unit, when = (cell.strip() for cell in line.strip("|").split("|"))
            told |= dict.fromkeys(re.findall(r"`([^`]+)`", keys), (unit, when))
    assert told == {m.key: (m.unit, m.when) for m in metrics.METRICS.values()}


def test_no_name_of_a_metric_stands_anywhere_else():
    names = metrics.METRICS.keys() - {"epoch", "environment"}  # words of other things too
    for path in (ROOT / "src").rglob("*.py"):
        if path != ROOT / "src" / "ampcompare" / "metrics.py":
            tree = ast.parse(path.read_text())
            found = {node.value for node in ast.walk(tree) if isinstance(node, ast.Constant)} & names
            assert not found, f"{path}: {found}; take the constant of ampcompare.metrics"


def test_a_layer_groups_part_is_found_where_there_are_parts():
    assert metrics.find("grad/zero_fraction/layer1") is metrics.METRICS["grad/zero_fraction"]
    assert metrics.find("grad/exponents/layer1") is None
    assert metrics.find("eval/loss/layer1") is None
    assert metrics.find("grad") is None
