"""What is said of each group, from the data and from nothing else; the decision itself is in decision.py."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from ampcompare.report import words
from ampcompare.report.analysis import phrases
from ampcompare.report.analysis.best import BestOfEach
from ampcompare.report.analysis.comparison import Comparison
from ampcompare.report.analysis.phrases import NBSP
from ampcompare.report.runs.groups import Group
from ampcompare.report.runs.metric import ComparedMetric
from ampcompare.report.runs.quantities import OWN, Quantities


@dataclass(frozen=True)
class Verdict:
    """`headline`: the decision; `lines`: a (label, sentence) per group; `cautions`: the reasons for doubt.

    `chips` has of each compared group what is known of its quality, in a word (`Comparison.chip`); `notes`
    are sentences on the experiment as a whole: its plan, its control, the best of each.
    """

    headline: str
    lines: tuple[tuple[str, str], ...]
    cautions: tuple[str, ...]
    chips: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


def line(
    group: Group,
    comparison: Comparison | None,
    metric: ComparedMetric,
    best: BestOfEach | None = None,
    quantities: Quantities = OWN,
) -> str:
    """What is to be said of one group, None its comparison where it is a baseline or there is none. A group
    that is not compared with its like is part of the `best` of each, if anything was tuned.
    """
    failed = _failures(group)
    if not group.counted:
        what = failed or group.outcomes.others or words.plural(len(group.runs), "run")
        return f"{words.capital(what)}, without a single logged row."
    is_compared = comparison is not None and (comparison.speed or comparison.quality or comparison.memory)
    if comparison and is_compared:
        sentence = gains(comparison)
    else:
        nothing = f"no throughput, memory or {metric.noun} was recorded"
        sentence = f"{', '.join(_absolute(group, metric, quantities)) or nothing} ({_runs(group)})"
    if failed:
        done = len(group.outcomes.finished)
        sentence = (
            f"{failed}. Of the {words.plural(done, 'run')} that finished: {sentence}"
            if done
            else (f"{failed}. Before that: {sentence}")
        )
    sentence = words.capital(sentence)
    skipped, median = group.values("skipped_steps"), group.medians["skipped_steps"]
    if any(skipped):
        each = "" if len(skipped) == 1 else " per run in the median"
        sentence += f"; {words.count(median)} skipped {'step' if median == 1 else 'steps'}{each}"
    if (best and not is_compared) and (place := best.place_of(group)):
        sentence += f". {words.capital(place)}"
    elif comparison and comparison.refusal:
        sentence += f". Not compared: {comparison.refusal}"
    if others := group.outcomes.others:
        sentence += f". {words.capital(others)}"
    return f"{sentence}."


def _failures(group: Group) -> str:
    """`3 of 5 fp16 runs failed (95 %: 15 to 95 %)`; nothing where none did."""
    found = group.outcomes.failures
    if found is None or not found.k:
        return ""
    low, high = (f"{end * 100:.0f}" for end in (found.low, found.high))
    return f"{group.outcomes.sentence} ({words.level(found.confidence)}: {low} to {high} %)"


def _absolute(group: Group, metric: ComparedMetric, quantities: Quantities) -> list[str]:
    parts = []
    if speed := group.means["images_per_second"]:
        parts.append(f"{words.number(speed.value)} {quantities.speed}")
    if memory := group.means["peak_mib"]:
        parts.append(quantities.memory_words(memory.value))
    if quality := group.means["quality"]:
        so_far = " so far" if group.is_unfinished else ""
        parts.append(f"{metric.name} {metric.show(quality.value)}{so_far}")
    return parts


def gains(comparison: Comparison) -> str:
    """`trains 1.90× as fast as none (95 %: 1.88 to 1.92), needs 41 % less memory (...), and its ...`.

    Where all figures rest on the same runs, that is said once, at the end; otherwise beside each.
    """
    every = ((phrases.speed, "speed"), (phrases.memory, "memory"), (phrases.quality, "quality"))
    figures = {name: found for _, name in every if (found := getattr(comparison, name)) is not None}
    bases = {phrases.basis(found) for found in figures.values()}
    notes = {name: phrases.basis(found) if len(bases) > 1 else "" for name, found in figures.items()}
    parts = [text for say, name in every if (text := say(comparison, notes.get(name, "")))]
    end = "not finished" if comparison.group.is_unfinished else ""
    if len(bases) == 1:
        end = ", ".join(part for part in (*bases, end) if part)
    end = f" ({end})" if end else ""
    if not comparison.enough_seeds:
        return f"{words.listed(parts)}: not enough seeds to tell what of this is chance{end}"
    if comparison.silence and comparison.quality is not None:
        parts[-1] += ", of which nothing is claimed"
        if not comparison.has_failed:  # that is said first of all
            parts[-1] += f": {comparison.silence}"
    start = f"{', '.join(parts[:-1])}, and " if len(parts) > 1 else ""
    return f"{start}{parts[-1]}{end}"


def _runs(group: Group) -> str:
    text = f"n{NBSP}={NBSP}{group.n}"
    if group.n > 1:
        text += f", {words.plural(group.seeds, 'seed')}"
    return f"{text}, not finished" if group.is_unfinished else text
