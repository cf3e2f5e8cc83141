"""Which runs are of which arm of a publication: by their settings, whoever chose them and whatever for."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ampcompare.config.canonical import AUTO, GROUP, has_no_effect
from ampcompare.config.options import Role
from ampcompare.config.schema import LEAVES, with_role
from ampcompare.errors import UserError
from ampcompare.published.publication import Publication
from ampcompare.records import RunRecord
from ampcompare.records.tree import as_text, flatten
from ampcompare.report.runs.groups import Group, group_runs
from ampcompare.report.runs.hardware import is_same_card
from ampcompare.report.runs.settings import BACKEND, FOLLOWS, differing_keys
from ampcompare.report.runs.table import RUN, device_words, environment_of
from ampcompare.report.words import by_reason, plural, printable, short, some

if TYPE_CHECKING:
    from ampcompare.report.analysis.analysis import Analysis

NAMES = ("model.name", "data.source")  # without which nothing is known of a run
IDENTITY = ("model.name", "model.stem", "model.kwargs", "data.source", "data.kwargs", "data.train_limit")
SCALE, NETWORK, NAMED = "published.scale", "published.network", "published.name"
SHRUNK = ("model.", "data.", "batch_size", "epochs", "max_steps", "eval.batch_size")  # by `scale`, `network`
LENGTH = ("epochs", "max_steps")
# What a run may have otherwise without anybody calling it another experiment.
ASIDE = ("log.", "diagnostics.", "eval.", "checkpoint.", "published.", "task.metric", "data.test_limit")

Option = Callable[[str], Any]


@dataclass(frozen=True)
class Matched:
    """The runs by arm, all of one setting but for what the arms set; what was left out, and why.

    `deviations` are the settings in which they differ from the published ones, by key; `scaled` says that
    they were shrunk, and to what; empty where they were not. `same_card`: whether all ran on theirs.
    """

    arms: Mapping[str, Group]
    deviations: Mapping[str, str]
    left_out: tuple[str, ...] = ()
    scaled: str = ""
    same_card: bool = False

    @property
    def devices(self) -> tuple[str, ...]:
        """Where the runs ran."""
        rows = (row for group in self.arms.values() for _, row in group.rows.iterrows())
        return tuple(dict.fromkeys(map(device_words, rows)))

    @property
    def is_of_another_length(self) -> bool:
        """Whether they trained for another number of epochs."""
        return any(key in self.deviations for key in LENGTH)


def match(publication: Publication, analysis: Analysis) -> Matched:
    """The runs of each arm. Where they are of several settings, those of the one that has the baseline, the
    published card, and most of the arms. Raises UserError where none is of this model, these data and an arm.
    """
    by_arm: dict[str, list[int]] = {}
    refused: list[tuple[str, str]] = []
    for number, run in enumerate(analysis.table[RUN]):
        arm, why = _arm_of(publication, run)
        if arm:
            by_arm.setdefault(arm, []).append(number)
        else:
            refused.append((_name(run), why))
    if not by_arm:
        reasons = "; ".join(dict.fromkeys(why for _, why in refused))
        raise UserError(
            f"{publication.name}: none of {plural(len(refused), 'run')} is of it: {short(reasons, 300)}"
        )
    found = {arm: _groups(analysis, numbers) for arm, numbers in by_arm.items()}
    left_out = [f"{names}: {why}" for names, why in by_reason(refused, 3)]
    return _of_one_setting(publication, found, left_out)


def _groups(analysis: Analysis, numbers: Sequence[int]) -> list[Group]:
    floor = analysis.groups[0].floor
    settings = [analysis.settings[number] for number in numbers]
    rows = analysis.table.iloc[list(numbers)]
    groups = group_runs(rows, settings, analysis.metric, (BACKEND,), analysis.ignored, floor)
    return [group for group in groups if not group.is_control and group.n]


def _of_one_setting(
    publication: Publication, found: Mapping[str, Sequence[Group]], left_out: list[str]
) -> Matched:
    settings: dict[frozenset[tuple[str, str]], dict[str, Group]] = {}
    for arm, groups in found.items():
        for group in sorted(groups, key=lambda g: -g.n):
            settings.setdefault(_rest(publication, group), {}).setdefault(arm, group)
    ranked = sorted(settings.items(), key=lambda item: _rank(publication, item[1]), reverse=True)
    if not ranked:
        raise UserError(f"{publication.name}: none of its runs has any figures yet")
    rest, arms = ranked[0]
    for other, theirs in ranked[1:]:
        keys = sorted(differing_keys([dict(rest), dict(other)]))
        told = some([f"{key} {short(dict(other).get(key, 'not set'), 40)}" for key in keys], 3)
        count = sum(len(group.all_rows) for group in theirs.values())
        left_out.append(f"{plural(count, 'run')} of {some(list(theirs), 3)}: in another setting ({told})")
    order = {arm: arms[arm] for arm in publication.arms if arm in arms}
    runs = [run for group in order.values() for run in group.records]
    scaled = _scale_of(publication, runs[0])
    deviations = dict(_deviations(publication, runs, bool(scaled)))
    same = is_same_card(publication.hardware, {d for group in order.values() for d in group.devices})
    return Matched(order, deviations, tuple(printable(line) for line in left_out), scaled, same)


def _rank(publication: Publication, arms: Mapping[str, Group]) -> tuple[Any, ...]:
    runs = [run for group in arms.values() for run in group.records]
    scaled = bool(_scale_of(publication, runs[0]))
    return (
        not scaled,
        publication.baseline in arms,
        is_same_card(publication.hardware, {d for group in arms.values() for d in group.devices}),
        len(arms),
        -len(dict(_deviations(publication, runs, scaled))),
        len(runs),
    )


def _rest(publication: Publication, group: Group) -> frozenset[tuple[str, str]]:
    """The settings of a group without what an arm is and what follows from it."""
    keys = {BACKEND, *publication.arm_keys}
    keys |= {f"environment.{key.rpartition('.')[2]}" for key in keys}
    rest = {(k, v) for k, v in group.settings.items() if k not in keys and not k.startswith(_FOLLOWING)}
    return frozenset({*rest, (SCALE, _scale_of(publication, group.records[0]))})


_FOLLOWING = (*FOLLOWS[BACKEND], "published.", "environment.precision", "environment.backend")


def _arm_of(publication: Publication, run: RunRecord) -> tuple[str, str]:
    """The arm of a run, or why it is of none."""
    keys = publication.arm_keys
    if _scale_of(publication, run):  # what was shrunk is as it is on purpose
        keys = tuple(key for key in keys if not key.startswith(SHRUNK))
        names = sorted(publication.arms, key=lambda name: name != run.option("published.arm"))
    elif differs := list(_unlike(publication, run)):
        return "", some(differs, 3)
    else:
        names = list(publication.arms)
    ours = _signature(keys, _of_run(run))
    for name in names:
        option = _of_publication(publication, publication.arms[name])
        theirs = _signature(keys, option)
        if all(_same(ours.get(key), value) for key, value in theirs.items() if value != AUTO):
            return name, ""
    told = some([f"{key} {_shown(_of_run(run)(key))}" for key in keys], 3)
    return "", f"{told} is none of its arms ({some(list(publication.arms), 6)})"


def _unlike(publication: Publication, run: RunRecord) -> Iterator[str]:
    """What of model and data a run has otherwise: `model.name resnet20 (published resnet50)`."""
    theirs, ours = _of_publication(publication, {}), _of_run(run)
    keys = dict.fromkeys((*IDENTITY, *(k for k in publication.setting if k.startswith(IDENTITY))))
    for tree in ("model.kwargs", "data.kwargs"):
        if _has(publication, tree) and isinstance(inner := run.option(tree), Mapping):
            keys |= dict.fromkeys(f"{tree}.{key}" for key, _ in flatten(inner))
    for key in keys:
        if key == "model.stem" and theirs("model.name") not in LEAVES["model.name"].meta["choices"]:
            continue
        if key in NAMES and run.option(key) is None and key in publication.setting:
            yield f"{key} not recorded (published {_shown(theirs(key))})"
        elif key in publication.arm_keys or (key.endswith(".kwargs") and _has(publication, key)):
            continue
        elif not _same(ours(key), theirs(key)):
            yield f"{key} {_shown(ours(key))} (published {_shown(theirs(key))})"


def _has(publication: Publication, tree: str) -> bool:
    return any(key.startswith(f"{tree}.") for key in publication.setting)


def _deviations(
    publication: Publication, runs: Sequence[RunRecord], scaled: bool
) -> Iterator[tuple[str, str]]:
    """Options that the runs have otherwise than published: (key, `batch_size 128 (published 256)`)."""
    theirs = _of_publication(publication, {})
    passing = with_role(Role.BOOKKEEPING, Role.REPEAT, Role.MAY_DIFFER) - {"max_steps"}
    for key in dict.fromkeys((*publication.setting, *LEAVES)):
        if key in passing or key in publication.arm_keys or key.startswith((*IDENTITY, *ASIDE, GROUP)):
            continue
        if (scaled and key.startswith(SHRUNK)) or key == BACKEND:
            continue
        here = [_of_run(run)(key) for run in runs]
        unlike = [value for value in here if theirs(key) != AUTO and not _same(value, theirs(key))]
        if unlike:
            said = some(list(dict.fromkeys(_shown(value) for value in here)), 3)
            yield key, f"{key} {said} (published {_shown(theirs(key))})"


def _scale_of(publication: Publication, run: RunRecord) -> str:
    """How a run of this publication was shrunk, in words; nothing for any other run, and one in full size."""
    option = run.option
    named = as_text(option(NAMED)).replace("\\", "/").rpartition("/")[2].removesuffix(".yaml")
    scale, network = option(SCALE), option(NETWORK)
    if named != publication.name:
        return ""
    told = [] if scale is None or _same(scale, 1) else [f"at scale {_shown(scale)}"]
    if network is not None:
        told.append(f"with the network {_shown(network)}")
    return " ".join(told)


def _signature(keys: Sequence[str], option: Option) -> dict[str, Any]:
    """What tells arms apart: the backend, and of the arms' keys those that have an effect."""
    name = as_text(option(BACKEND))
    telling = [key for key in keys if key != BACKEND and not has_no_effect(key, name)]
    return {BACKEND: name, **{key: option(key) for key in telling}}


def _of_run(run: RunRecord) -> Option:
    """The options of a run: what it did not record has the default, what was
    left to the machine is as it came out there.
    """

    def option(key: str) -> Any:
        value = run.option(key, _MISSING)
        if value is _MISSING:
            value = _default(key)
        if value == AUTO:
            value = environment_of(run).get(key.rpartition(".")[2], value)
        return _resolved(key, value, option)

    return option


def _of_publication(publication: Publication, arm: Mapping[str, Any]) -> Option:
    def option(key: str) -> Any:
        value = {**publication.setting, **arm}.get(key, _MISSING)
        return _resolved(key, _default(key) if value is _MISSING else value, option)

    return option


_MISSING = object()


def _default(key: str) -> Any:
    leaf = LEAVES.get(key)
    return None if leaf is None else leaf.default


def _resolved(key: str, value: Any, option: Option) -> Any:
    """What null stands for, where it stands for a value of its own."""
    leaf = LEAVES.get(key)
    said = leaf.meta["null_is"] if leaf and value is None else None
    return said(option) if said else value


def _same(one: Any, other: Any) -> bool:
    if isinstance(one, list | tuple) and isinstance(other, list | tuple):
        return len(one) == len(other) and all(map(_same, one, other))
    if isinstance(one, bool) or isinstance(other, bool) or one is None or other is None:
        return one is other or (one in (None, {}) and other in (None, {}))
    if as_text(one) == as_text(other):
        return True
    try:
        return float(one) == float(other)
    except (TypeError, ValueError, OverflowError):
        return False


def _shown(value: Any) -> str:
    return short(printable(as_text(value)), 60)


def _name(run: RunRecord) -> str:
    return short(printable(f"{run.name or 'run'} ({run.id})"), 80)
