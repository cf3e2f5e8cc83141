"""Which runs are of which arm of a publication: by their settings, whoever chose them and whatever for."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ampcompare.config.canonical import AUTO, GROUP, canonical
from ampcompare.config.options import Role
from ampcompare.config.schema import with_role
from ampcompare.errors import UserError
from ampcompare.published.publication import Publication
from ampcompare.records import RunRecord
from ampcompare.records.tree import as_text
from ampcompare.report.runs.groups import Group
from ampcompare.report.runs.hardware import is_same_card
from ampcompare.report.runs.settings import BACKEND, FOLLOWS, differing_keys
from ampcompare.report.runs.table import device_words, environment_of
from ampcompare.report.words import by_reason, plural, printable, short, some

NAMES = ("model.name", "data.source")  # without which nothing is known of a run
IDENTITY = ("model.name", "model.stem", "model.kwargs", "data.source", "data.kwargs", "data.train_limit")
SCALE, NETWORK, NAMED = "published.scale", "published.network", "published.name"
SHRUNK = ("model.", "data.", "batch_size", "epochs", "max_steps", "eval.batch_size")  # by `scale`, `network`
LENGTH = ("epochs", "max_steps")
# What a run may have otherwise without anybody calling it another experiment.
ASIDE = ("log.", "diagnostics.", "eval.", "checkpoint.", "published.", "task.metric", "data.test_limit")

Options = Mapping[str, Any]
Pool = Callable[[list[int]], list[Group]]  # the groups of the runs of these numbers


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


def match(publication: Publication, runs: Sequence[RunRecord], pool: Pool) -> Matched:
    """The runs of each arm. Where they are of several settings, those of the one that has the baseline, the
    published card, and most of the arms. Raises UserError where none is of this model, these data and an arm.
    """
    by_arm: dict[str, list[int]] = {}
    refused: list[tuple[str, str]] = []
    for number, run in enumerate(runs):
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
    found = {
        arm: [group for group in pool(numbers) if not group.is_control and group.n]
        for arm, numbers in by_arm.items()
    }
    left_out = [f"{names}: {why}" for names, why in by_reason(refused, 3)]
    return _of_one_setting(publication, found, left_out)


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
    keys = {BACKEND, *publication.arm_keys}
    ours = _ours(run)
    if _scale_of(publication, run):  # what was shrunk is as it is on purpose
        keys = {key for key in keys if not key.startswith(SHRUNK)}
        names = sorted(publication.arms, key=lambda name: name != run.option("published.arm"))
    elif differs := list(_unlike(publication, run, ours)):
        return "", some(differs, 3)
    else:
        names = list(publication.arms)
    for name in names:
        if not list(_differing(ours, _theirs(publication, name), keys.__contains__)):
            return name, ""
    told = some([f"{key} {_shown(ours[key])}" for key in sorted(keys) if key in ours], 3)
    return "", f"{told} is none of its arms ({some(list(publication.arms), 6)})"


def _ours(run: RunRecord) -> Options:
    return canonical(run.config, environment_of(run))


def _theirs(publication: Publication, arm: str) -> Options:
    return canonical({**publication.setting, **publication.arms[arm]})


def _differing(ours: Options, theirs: Options, asked: Callable[[str], bool]) -> Iterator[str]:
    """The options that are asked for and are not the same; what was left to the machine is as it came out."""
    for key in dict.fromkeys((*theirs, *ours)):
        if asked(key) and theirs.get(key) != AUTO and not _same(ours.get(key), theirs.get(key)):
            yield key


def _unlike(publication: Publication, run: RunRecord, ours: Options) -> Iterator[str]:
    """What of model and data a run has otherwise: `model.name resnet20 (published resnet50)`."""
    theirs = _theirs(publication, publication.baseline)
    for key in NAMES:
        if run.option(key) is None and key in publication.setting:
            yield f"{key} not recorded (published {_shown(theirs[key])})"
            return
    arm_keys = publication.arm_keys
    for key in _differing(ours, theirs, lambda key: key.startswith(IDENTITY) and key not in arm_keys):
        yield f"{key} {_shown(ours.get(key))} (published {_shown(theirs.get(key))})"


def _deviations(
    publication: Publication, runs: Sequence[RunRecord], scaled: bool
) -> Iterator[tuple[str, str]]:
    """Options that the runs have otherwise than published: (key, `batch_size 128 (published 256)`)."""
    theirs = _theirs(publication, publication.baseline)
    passing = with_role(Role.REPEAT, Role.MAY_DIFFER) - {"max_steps"} | {BACKEND, *publication.arm_keys}
    aside = (*IDENTITY, *ASIDE, GROUP, *(SHRUNK if scaled else ()))
    every = [_ours(run) for run in runs]

    def counts(key: str) -> bool:
        return key not in passing and not key.startswith(aside)

    for key in dict.fromkeys(key for ours in every for key in _differing(ours, theirs, counts)):
        said = some(list(dict.fromkeys(_shown(ours.get(key)) for ours in every)), 3)
        yield key, f"{key} {said} (published {_shown(theirs.get(key))})"


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


def _same(one: Any, other: Any) -> bool:
    """Whether two values are one, however they are written: 0.1 is 1e-1."""
    try:
        return as_text(one) == as_text(other) or float(one) == float(other)
    except (TypeError, ValueError, OverflowError):
        return False


def _shown(value: Any) -> str:
    return short(printable(as_text(value)), 60)


def _name(run: RunRecord) -> str:
    return short(printable(f"{run.name or 'run'} ({run.id})"), 80)
