"""Which runs are of which arm of a publication: those whose `canonical` settings are the arm's."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
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
from ampcompare.report.runs.settings import BACKEND
from ampcompare.report.runs.table import device_words, environment_of
from ampcompare.report.words import by_reason, plural, printable, short, some

NAMES = ("model.name", "data.source")  # without which nothing is known of a run
IDENTITY = (*NAMES, "model.stem", "model.kwargs", "data.kwargs", "data.train_limit")
SHRUNK = ("model.", "data.", "batch_size", "epochs", "max_steps", "eval.batch_size")  # by `scale`, `network`
# What a run may have otherwise without anybody calling it another experiment.
ASIDE = ("log.", "diagnostics.", "eval.", "checkpoint.", "published.", "task.metric", "data.test_limit")
PASSING = with_role(Role.REPEAT, Role.MAY_DIFFER) - {"max_steps"} | {BACKEND}

# What says nothing of how fast a card is.
MAKERS = frozenset(
    "nvidia amd intel geforce tesla quadro gpu cpu gpus graphics card single one 1x x1 server edition".split()
)
_MORE = re.compile(r"\d+gb|hbm\d*e?|(?:sxm|pci|nvl)[\de]*")  # memory and form, which a name may leave out

Pool = Callable[[list[int]], list[Group]]  # the groups of the runs of these numbers


# To what runs were shrunk, their device, their deviations: (key, `batch_size 128 (published 256)`).
Setting = tuple[str, str, tuple[tuple[str, str], ...]]


@dataclass(frozen=True)
class Matched:
    """The runs by arm, all of one setting; what was left out, and why.

    `scaled` says to what they were shrunk, empty where they were not; `deviations` are the options that are
    not as published, in words by key. `same_card`: all ran on theirs.
    """

    arms: Mapping[str, Group]
    scaled: str
    deviations: Mapping[str, str]
    left_out: tuple[str, ...]
    same_card: bool

    @property
    def devices(self) -> tuple[str, ...]:
        rows = (row for group in self.arms.values() for _, row in group.rows.iterrows())
        return tuple(dict.fromkeys(map(device_words, rows)))


def match(publication: Publication, runs: Sequence[RunRecord], pool: Pool) -> Matched:
    """The runs of each arm. Where they are of several settings, those of the one that has the baseline, the
    published card, and most of the arms. Raises UserError where none is of this model, these data and an arm.
    """
    settings: dict[Setting, dict[str, list[int]]] = {}
    refused: list[tuple[str, str]] = []
    for number, run in enumerate(runs):
        arm, why = _arm_of(publication, run)
        if arm:
            settings.setdefault(_setting_of(publication, run), {}).setdefault(arm, []).append(number)
        else:
            refused.append((short(printable(f"{run.name or 'run'} ({run.id})"), 80), why))
    if not settings:
        why = short("; ".join(dict.fromkeys(why for _, why in refused)), 300)
        raise UserError(f"{publication.name}: none of {plural(len(refused), 'run')} is of it: {why}")

    def rank(setting: Setting) -> tuple[Any, ...]:
        arms, (scaled, device, _) = settings[setting], setting
        is_same, count = is_same_card(publication.hardware, [device]), sum(map(len, arms.values()))
        return not scaled, publication.baseline in arms, is_same, len(arms), count

    best = max(settings, key=rank)
    left_out = [f"{names}: {why}" for names, why in by_reason(refused, 3)]

    def leave_out(count: int, of: str, why: str) -> None:
        left_out.append(f"{plural(count, 'run')} of {of}: in another setting ({why})")

    for setting, numbers in settings.items():
        if setting != best:
            told = [text for _, text in setting[2]] or [one for one in setting[:2] if one]
            leave_out(sum(map(len, numbers.values())), some(list(numbers), 3), some(told, 3))
    arms: dict[str, Group] = {}
    for arm in (name for name in publication.arms if name in settings[best]):
        groups = [group for group in pool(settings[best][arm]) if group.n and not group.is_control]
        for group in sorted(groups, key=lambda group: -group.n):
            if arms.setdefault(arm, group) is not group:
                leave_out(len(group.all_rows), arm, group.label)
    if not arms:
        raise UserError(f"{publication.name}: none of its runs has any figures yet")
    is_same = is_same_card(publication.hardware, {name for group in arms.values() for name in group.devices})
    return Matched(arms, best[0], dict(best[2]), tuple(map(printable, left_out)), is_same)


def _setting_of(publication: Publication, run: RunRecord) -> Setting:
    ours, theirs = _ours(run), _theirs(publication, publication.baseline)
    scaled, passing = _scale_of(publication, run), PASSING | {*publication.arm_keys}
    aside = (*IDENTITY, *ASIDE, GROUP, *(SHRUNK if scaled else ()))
    keys = [key for key in ours | theirs if key not in passing and not key.startswith(aside)]
    device = as_text(environment_of(run).get("device_name") or "")
    return scaled, device, tuple(_unlike(ours, theirs, keys))


def _arm_of(publication: Publication, run: RunRecord) -> tuple[str, str]:
    """The arm of a run, or why it is of none."""
    ours, keys, names = _ours(run), {BACKEND, *publication.arm_keys}, [*publication.arms]
    if _scale_of(publication, run):  # what was shrunk is as it is on purpose
        keys = {key for key in keys if not key.startswith(SHRUNK)}
        names.sort(key=lambda name: name != run.option("published.arm"))
    else:
        theirs = _theirs(publication, publication.baseline)
        ours |= {key: "not recorded" for key in NAMES if run.option(key) is None}
        of_it = [key for key in ours | theirs if key.startswith(IDENTITY) and key not in keys]
        if unlike := [text for _, text in _unlike(ours, theirs, of_it)]:
            return "", some(unlike, 3)
    for name in names:
        if not _unlike(ours, _theirs(publication, name), keys):
            return name, ""
    told = some([f"{key} {_shown(ours[key])}" for key in sorted(keys) if key in ours], 3)
    return "", f"{told} is none of its arms ({some(list(publication.arms), 6)})"


def _ours(run: RunRecord) -> dict[str, Any]:
    return canonical(run.config, environment_of(run))


def _theirs(publication: Publication, arm: str) -> dict[str, Any]:
    return canonical({**publication.setting, **publication.arms[arm]})


def _unlike(ours: Mapping[str, Any], theirs: Mapping[str, Any], keys: Iterable[str]) -> list[tuple[str, str]]:
    """What is not the same: (key, `batch_size 128 (published 256)`). What a publication left to the machine
    is as it came out.
    """
    return [
        (key, f"{key} {_shown(ours.get(key))} (published {_shown(theirs.get(key))})")
        for key in keys
        if theirs.get(key) != AUTO and not _is_same(ours.get(key), theirs.get(key))
    ]


def _is_same(one: Any, other: Any) -> bool:
    """Whether two values are one, however they are written: 0.1 is 1e-1."""
    try:
        return as_text(one) == as_text(other) or float(one) == float(other)
    except (TypeError, ValueError, OverflowError):
        return False


def _scale_of(publication: Publication, run: RunRecord) -> str:
    """How a run of this publication was shrunk, in words; nothing for any other run, and one in full size."""
    named = as_text(run.option("published.name")).replace("\\", "/").rpartition("/")[2]
    scale, network = run.option("published.scale"), run.option("published.network")
    if named.removesuffix(".yaml") != publication.name:
        return ""
    told = [] if scale in (None, 1) else [f"at scale {_shown(scale)}"]
    return " ".join([*told, *([] if network is None else [f"with the network {_shown(network)}"])])


def _shown(value: Any) -> str:
    return short(printable(as_text(value)), 60)


def is_same_card(published: str, devices: Iterable[str]) -> bool:
    """Whether all devices are the published one: the same words, of which one name may leave out memory and
    form. An unknown name is no other's.

    >>> is_same_card("Tesla V100", ["Tesla V100-SXM2-16GB"]), is_same_card("RTX 2080", ["RTX 2080 Ti"])
    (True, False)
    >>> is_same_card("H100 PCIe", ["NVIDIA H100 SXM"])
    False
    """
    theirs, ours = _words(published), [_words(device) for device in devices]
    return bool(theirs and ours) and all(
        (theirs <= here or here <= theirs) and all(map(_MORE.fullmatch, theirs ^ here)) for here in ours
    )


def _words(name: str) -> frozenset[str]:
    text = re.sub(r"\((?:r|tm|c)\)|[®™]", " ", name.lower())
    text = re.sub(r"(\d+)[ -]?gi?b\b", r" \1gb ", text)
    return frozenset(word for word in re.split(r"[^a-z0-9.]+", text) if word and word not in MAKERS)
