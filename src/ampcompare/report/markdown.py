"""The comparison as Markdown: the file beside the page, and a block for a pull request."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ampcompare.report import words
from ampcompare.report.analysis.analysis import Analysis
from ampcompare.report.analysis.phrases import NBSP
from ampcompare.report.runs.groups import Group
from ampcompare.report.statistics.samples import Estimate

ESCAPES = str.maketrans({c: f"\\{c}" for c in "\\`*_{}[]<>|#&~$"})


def to_markdown(analysis: Analysis) -> str:
    """The verdict, a table to paste into a pull request or paper, the reasons for doubt and the method."""
    verdict = analysis.verdict
    lines = [f"# {_safe(verdict.headline)}", "", _safe(analysis.lead), "", _safe(analysis.setting.whole), ""]
    lines += _table(analysis)
    lines += ["", *(f"- **{_safe(label)}**: {_safe(line)}" for label, line in verdict.lines), ""]
    lines += _requirements(analysis)
    lines += _published(analysis)
    if verdict.notes:
        lines += [*(f"- {_safe(note)}" for note in verdict.notes), ""]
    if verdict.cautions:
        lines += ["Before you quote a figure:", "", *(f"- {_safe(c)}" for c in verdict.cautions), ""]
    intervals = f"95 % {analysis.interval_kind} intervals over runs (quality: over seeds)"
    lines.append(f"In brackets: {intervals}; {_methods(analysis)}.")
    lines += (
        ["What was tested at another level says so in the sentences above."]
        if _other_levels(analysis)
        else []
    )
    return "\n".join(lines) + "\n"


def to_summary(analysis: Analysis) -> str:
    """A block for a pull request: the decision, whether each requirement is shown, the table."""
    lines = [
        f"### {_safe(analysis.verdict.headline)}",
        "",
        *_requirements(analysis),
        *_published(analysis),
        *_table(analysis),
        "",
    ]
    lines.append(_safe(analysis.setting.whole))
    return "\n".join(lines) + "\n"


def _requirements(analysis: Analysis) -> list[str]:
    if not analysis.required:
        return []
    said = []
    for answer in analysis.requirements:
        mark = "shown" if answer.is_shown else "**not shown**"
        said.append(f"- {mark}: {_safe(answer.term.label)}: {_safe(answer.term.text)} ({_safe(answer.why)})")
    return ["Required:", "", *said, ""]


def _published(analysis: Analysis) -> list[str]:
    """What became of each published figure, as a list."""
    if (beside := analysis.published) is None:
        return []
    said = [f"- {_safe(row.sentence)}" for row in beside.rows]
    if beside.differences:
        said.append(f"- What differs: {_safe(words.listed(beside.differences))}.")
    said += [f"- Left out: {_safe(line)}." for line in beside.matched.left_out]
    source = f"{beside.publication.title}. {beside.publication.source}"
    return [f"**{_safe(beside.headline)}** ({_safe(source)})", "", *said, ""]


def _table(analysis: Analysis) -> list[str]:
    metric = analysis.metric
    head = [
        "",
        "runs",
        analysis.quantities.speed,
        "speed-up",
        analysis.quantities.peak,
        "memory",
        metric.name,
        metric.difference,
        "quality",
    ]
    rows = [[_safe(cell) for cell in head], ["---", *["---:"] * (len(head) - 1)]]
    for group in analysis.groups:
        compared = analysis.comparison(group.label)
        rows.append(
            [
                _safe(group.label),
                runs_of(group),
                _cell(group.means["images_per_second"], words.number),
                _cell(compared and compared.speed, words.speed),
                _cell(group.means["peak_mib"], analysis.quantities.show_memory),
                _cell(compared and compared.memory, words.change),
                _cell(group.means["quality"], metric.show),
                _cell(compared and compared.quality, words.signed),
                compared.chip if compared else "",
            ]
        )
    return [f"| {' | '.join(row)} |" for row in rows]


def runs_of(group: Group) -> str:
    """How many runs count, of how many there are: `5`, `2 of 5`."""
    return f"{group.n}" if group.n == len(group.runs) else f"{group.n} of {len(group.runs)}"


def _cell(estimate: Estimate | None, show: Callable[[Any], str]) -> str:
    if estimate is None:
        return ""
    return f"{show(estimate.value)}{words.between(estimate.low, estimate.high, show)}, n = {estimate.n}"


def _methods(analysis: Analysis) -> str:
    """How the comparisons were made; where figures differ in it, for each."""
    found: dict[str, dict[str, None]] = {}
    for name, attribute in {"speed-up": "speed", "memory": "memory", analysis.metric.name: "quality"}.items():
        for comparison in analysis.comparisons:
            if (estimate := getattr(comparison, attribute)) is not None:
                found.setdefault(name, {})[estimate.method] = None
    if not found:
        return "nothing is compared"
    every = dict.fromkeys(method for methods in found.values() for method in methods)
    if len(every) == 1:
        return f"comparisons {next(iter(every))}"
    return "; ".join(f"{_safe(name)}: {words.listed(methods)}" for name, methods in found.items())


def _other_levels(analysis: Analysis) -> bool:
    return any(claim.estimate.confidence != 0.95 for c in analysis.comparisons for claim in c.claims.values())


def _safe(text: str) -> str:
    """The text as itself on one line: names of runs may hold anything, what turns a line around included."""
    kept = (words.printable(part) for part in " ".join(text.splitlines()).split(NBSP))
    return NBSP.join(kept).translate(ESCAPES)
