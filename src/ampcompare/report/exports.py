"""The comparison as files for a paper or a program. As a table it is made here, one row a group."""

from __future__ import annotations

from typing import Any

import pandas as pd

from ampcompare.report.analysis.analysis import Analysis
from ampcompare.report.analysis.claims import EQUIVALENCE, Claim
from ampcompare.report.as_json import RATIOS, outcomes_of, tested_of, to_json
from ampcompare.report.markdown import to_markdown
from ampcompare.report.runs.groups import Group
from ampcompare.report.statistics.samples import Estimate

__all__ = ["to_csv", "to_json", "to_markdown"]


def to_csv(analysis: Analysis) -> str:
    """One row a group: figures with 95 % intervals and what they rest on, and how they compare."""
    rows = [_flat(group, analysis) for group in analysis.groups]
    return pd.DataFrame(rows, dtype=object).to_csv(index=False, lineterminator="\n")


def _flat(group: Group, analysis: Analysis) -> dict[str, Any]:
    found = analysis.comparison(group.label)
    share = group.outcomes.failures
    row: dict[str, Any] = {"group": _cell_text(group.label), "runs": group.n, "seeds": group.seeds}
    for name, estimate in group.means.items():
        row |= _ends(name, estimate)
    for name, attribute in (RATIOS | {"quality_difference": "quality"}).items():
        row |= _ends(name, found and getattr(found, attribute))
        row |= _tested_ends(name, found and found.claims.get(attribute))
    claim = found.claims.get(EQUIVALENCE) if found else None
    speed = found.speed if found else None
    return row | {
        "equivalence_margin": found and claim and found.metric.margin,
        "equivalence_p": claim and claim.p,
        "equivalent": claim and claim.rejected,
        **_tested_ends("equivalence", claim),
        "quality_is": found and found.chip,
        "quality_kept": found and found.keeps_quality,
        **outcomes_of(group),
        "failure_share": share and share.share,
        "failure_low": share and share.low,
        "failure_high": share and share.high,
        "n": found and found.n,
        "method": speed and speed.method,
        "metric": analysis.metric.key,
        "not_compared_because": found and _cell_text(found.refusal),
        "nothing_claimed_because": found and _cell_text(found.silence),
    }


def _cell_text(text: str) -> str:
    """Text that a spreadsheet takes for text: what begins like a formula gets an apostrophe before it."""
    return f"'{text}" if text[:1] in ("=", "+", "-", "@", "\t", "\r") else text


def _ends(name: str, estimate: Estimate | None) -> dict[str, Any]:
    """A figure with its 95 % interval, that of the next run, and what it rests on."""
    after = estimate and estimate.prediction()
    values = {
        "": estimate and estimate.value,
        "_low": estimate and estimate.low,
        "_high": estimate and estimate.high,
        "_next_low": after and after[0],
        "_next_high": after and after[1],
        "_n": estimate and estimate.n,
        "_method": estimate and estimate.method,
    }
    return {f"{name}{end}": value for end, value in values.items()}


def _tested_ends(name: str, claim: Claim | None) -> dict[str, Any]:
    tested = tested_of(claim) if claim else {}
    columns = {"tested_confidence": "confidence", "tested_low": "low", "tested_high": "high"}
    columns |= {key: key for key in ("p", "adjusted_p")}
    return {f"{name}_{column}": tested.get(key) for column, key in columns.items()}
