"""Doubts about the runs themselves, before any comparison of figures: how they ended, how they lie in time
and on cards, whether they were steady. A sentence each, only where it holds.
"""

from __future__ import annotations

from collections.abc import Sequence

from ampcompare.records.tree import as_text
from ampcompare.report.runs.cards import cards
from ampcompare.report.runs.ending import NO_STEP
from ampcompare.report.runs.figures import RunFigures, environment_of
from ampcompare.report.runs.groups import Group
from ampcompare.report.runs.order import layout
from ampcompare.report.runs.shared import shared_words
from ampcompare.report.runs.unsteady import SKIPPED_SHARE, median_gap, odd_ones, skipped_share
from ampcompare.report.statistics.estimate import Estimate
from ampcompare.report.words import by_reason, capital, change, listed, number, plural, ratio, short, some

Pair = tuple[Group, Group]  # a group and its baseline
MOST_NAMED = 4


def about_runs(groups: Sequence[Group], bases: Sequence[Group]) -> list[str]:
    """What failed, what did not come to its end, and a baseline that has no finished run."""
    said = []
    for group in groups:
        outcomes = group.outcomes
        if outcomes.failed:
            which = _reasons(group, outcomes.failed)
            said.append(f"{capital(outcomes.sentence)} ({which}).")
    for group in groups:
        stopped, finished = group.outcomes.stopped, group.outcomes.finished
        if stopped and finished and not group.is_control:
            verb = "was" if len(stopped) == 1 else "were"
            said.append(
                f"{len(stopped)} of {plural(len(group.runs), 'run')} of {group.label} {verb} stopped: if for "
                "how they did, as by early termination, those that finished are the better ones."
            )
    for base in _once(bases):
        if base.is_unfinished:
            what = "that failed" if base.outcomes.failed else "that were stopped or go on"
            said.append(
                f"The baseline {base.label} is unfinished: no run of it finished, its figures are of runs "
                f"{what}."
            )
        elif not base.counted:
            said.append(f"The baseline {base.label} is unfinished: no run of it has any figure.")
    for group in groups:
        if refused := group.outcomes.refused:
            which = _reasons(group, refused)
            verb = "was refused" if len(refused) == 1 else "were refused"
            verb = "ended" if all(f.why == NO_STEP for f in refused) else verb
            runs = plural(len(refused), "run")
            said.append(f"{runs} of {group.label} {verb} before the first step ({which}).")
    return said


def about_layout(pairs: Sequence[Pair], speeds: Sequence[Estimate] = ()) -> list[str]:
    """How the compared groups lie in time and on cards, with drift that is large, or that could explain one
    of the `speeds` (ratios to the baseline); runs of several cards in one group.
    """
    compared = _once([group for pair in pairs for group in (pair[1], pair[0])])
    found = layout(compared)
    said = []
    if shared := shared_words({group.label: group.counted for group in compared}):
        who = some(shared, MOST_NAMED)
        said.append(f"Runs shared the machine with others of these ({who}): their times are not compared.")
    said += found.sentences
    if any(map(found.may_explain, speeds)) and found.drift_sentence not in said:
        said.append(found.drift_sentence)
    for group in compared:
        if (several := cards(group.counted)) and len(several) > 1:
            said.append(f"{group.label} pools runs of {len(several)} cards or hosts of the same name.")
    return said


def about_speed(groups: Sequence[Group], pairs: Sequence[Pair]) -> list[str]:
    """What medians of throughput leave out, runs that were not steady, steps that were skipped."""
    said = []
    for group, base in pairs:
        if len(group.devices | base.devices) == 1 and (gap := median_gap(group, base)):
            whole, left_out = "whole training seconds", "warm-up, compilation"
            if base.counted[0].settings is not None:
                whole, left_out = "the whole time of the runs", "start, evaluations"
            said.append(
                f"By medians {group.label} trains {ratio(gap[0])} as fast as {base.label}, by {whole} "
                f"{ratio(gap[1])}: {left_out} and stalls are not in a median."
            )
    # Of a run that shared its machine the times are not compared, and what disturbed it is known.
    states = [(group, f, f.steadiness) for group in groups for f in group.counted if not f.shares_machine]
    if stalled := [f"{of(g, f)}: {s.stalled * 100:.0f} % of its time" for g, f, s in states if s.stalled]:
        said.append(f"Stalls, which a median does not show: {some(stalled, MOST_NAMED)}.")
    if drifting := [f"{of(g, f)}: {change(s.change)}" for g, f, s in states if s.change]:
        said.append(f"Throughput drifts within {some(drifting, MOST_NAMED)} from its beginning to its end.")
    odd = [f"{of(group, f)}: {number(r)}×" for group in groups for f, r in odd_ones(group)]
    if odd:
        said.append(f"Unlike all others of its group in throughput: {some(odd, MOST_NAMED)} their median.")
    if skipping := [part for group in groups if (part := _skipping(group))]:
        said.append(f"Skipped steps above 1 %: {listed(skipping)}.")
    return said + _commits(groups)


def _skipping(group: Group) -> str:
    shares = [share for f in group.runs if (share := skipped_share(f)) and share > SKIPPED_SHARE]
    if not shares:
        return ""
    runs = f"{len(shares)} of {plural(len(group.runs), 'run')}"
    return f"{runs} of {group.label} (up to {max(shares) * 100:.1f} %)"


def _commits(groups: Sequence[Group]) -> list[str]:
    said = (environment_of(f.run).get("git_commit") for g in groups for f in g.runs)
    commits = list(dict.fromkeys(short(as_text(one)) for one in said if one))
    if len(commits) < 2:
        return []
    shown = some([_short_commit(one) for one in commits], 3)
    of_others = any(f.run.option("recorder") is not None for g in groups for f in g.runs)
    code = "AMP Compare's own code" if of_others else "the code"  # of their loop's code nothing is recorded
    return [f"The runs are of {len(commits)} states of {code} ({shown}) and pooled as of one."]


def _short_commit(commit: str) -> str:
    head, dash, rest = commit.partition("-")
    return f"{head[:7]}{dash}{rest}"


def _reasons(group: Group, runs: Sequence[RunFigures]) -> str:
    """`seed 1 and seed 2: its last training loss is NaN; seed 3: exit code 1`."""
    reasons = by_reason(((name_in(group, run), run.why) for run in runs), MOST_NAMED)
    return "; ".join(f"{names}: {why}" for names, why in reasons)


def name_in(group: Group, figures: RunFigures) -> str:
    """`seed 2`, or the run's name and id where the group has several of that seed."""
    alike = sum(1 for f in group.runs if as_text(f.seed) == as_text(figures.seed))
    if figures.seed is None or alike > 1:
        return f"{figures.run.name} ({figures.run.id})"
    return f"seed {as_text(figures.seed)}"


def of(group: Group, figures: RunFigures) -> str:
    """`native, seed 2`."""
    return f"{group.label}, {name_in(group, figures)}"


def _once(groups: Sequence[Group]) -> list[Group]:
    return list({group.label: group for group in groups}.values())
