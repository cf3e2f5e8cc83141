"""Which runs are of which arm of a publication: those whose `canonical` settings are the arm's."""

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import pandas as pd

from ampcompare.analysis.grouping.compared_metric import ComparedMetric
from ampcompare.analysis.grouping.distinguishing_settings import BACKEND
from ampcompare.analysis.grouping.groups import Group, group_runs
from ampcompare.analysis.grouping.run_table import RUN, describe_device
from ampcompare.config.canonical import AUTO, GROUP, canonical
from ampcompare.config.option_spec import Role
from ampcompare.config.schema import with_role
from ampcompare.errors import UserError
from ampcompare.publications.publication import Publication
from ampcompare.runs import RunRecord
from ampcompare.runs.migrations import TF32, config_now
from ampcompare.runs.nested import as_text
from ampcompare.runtime.formatting import group_by_reason, numeric_sort_key, plural, printable, short, some

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


class RunConditions(NamedTuple):
    """Where runs of an arm stand: to what they were shrunk, on which device, and what of them is not as
    published, a key and `batch_size 128 (published 256)` each.
    """

    scaled: str
    device: str
    deviations: tuple[tuple[str, str], ...]

    @property
    def text(self) -> str:
        return some([text for _, text in self.deviations] or [*filter(None, (self.scaled, self.device))], 3)


@dataclass(frozen=True)
class PublicationMatch:
    """The runs by arm, all of one place; what was left out, and why.

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
        return tuple(dict.fromkeys(map(describe_device, rows)))


def match_runs(
    publication: Publication, rows: pd.DataFrame, metric: ComparedMetric, ignored: frozenset[str]
) -> PublicationMatch:
    """The runs of each arm, of the table of runs. Where they are of several places, those of the one that
    has the baseline, the published card, and most of the arms. Raises UserError where none is of this model,
    these data and an arm.
    """
    published = {
        arm: canonical(config_now({**publication.setting, **own})) for arm, own in publication.arms.items()
    }
    places: dict[RunConditions, dict[str, list[int]]] = {}
    refused: list[tuple[str, str]] = []
    for number, run in enumerate(rows[RUN]):
        place, arm, why = _conditions_of(run, publication, published)
        if why:
            refused.append((short(printable(f"{run.name or 'run'} ({run.id})"), 80), why))
        else:
            places.setdefault(place, {}).setdefault(arm, []).append(number)
    if not places:
        why = short("; ".join(dict.fromkeys(why for _, why in refused)), 300)
        raise UserError(f"{publication.name}: none of {plural(len(refused), 'run')} is of it: {why}")

    def rank(place: RunConditions) -> tuple[Any, ...]:
        arms, is_same = places[place], is_same_card(publication.hardware, [place.device])
        count = sum(map(len, arms.values()))
        return not place.scaled, publication.baseline in arms, is_same, len(arms), count

    best = max(places, key=rank)
    others = [(place, arms) for place, arms in places.items() if place != best]
    aside = [(arm, len(n), place.text) for place, arms in others for arm, n in arms.items()]
    arms: dict[str, Group] = {}
    for arm in (name for name in publication.arms if name in places[best]):
        pooled = group_runs(rows.iloc[places[best][arm]], metric, (BACKEND,), ignored)
        groups = [group for group in pooled if group.n and not group.is_control]
        for group in sorted(groups, key=lambda group: -group.n):
            if arms.setdefault(arm, group) is not group:
                aside.append((arm, len(group.all_rows), group.label))
    if not arms:
        raise UserError(f"{publication.name}: none of its runs has any figures yet")
    left_out = [f"{names}: {why}" for names, why in group_by_reason(refused, 3)]
    left_out += [f"{plural(n, 'run')} of {arm}: in another setting ({why})" for arm, n, why in aside]
    is_same = is_same_card(publication.hardware, {name for group in arms.values() for name in group.devices})
    return PublicationMatch(
        arms, best.scaled, dict(best.deviations), tuple(map(printable, left_out)), is_same
    )


def _conditions_of(
    run: RunRecord, publication: Publication, published: Mapping[str, Mapping[str, Any]]
) -> tuple[RunConditions, str, str]:
    """A run's place and its arm, or why it is of none."""
    environment, scaled = run.environment, _scale_of(publication, run)
    measured, base = canonical(run.config, environment), published[publication.baseline]
    measured |= {key: "not recorded" for key in NAMES if run.option(key) is None}
    of_arms = {BACKEND, *publication.arm_keys}
    if any(
        arm[BACKEND] == TF32 for arm in published.values()
    ):  # whose arms differ in this switch by what they are
        of_arms |= {TF32}
    off = {key: text for key, text in _unlike(measured, base, {**measured, **base}) if key not in of_arms}
    aside = (*IDENTITY, *ASIDE, GROUP, *(SHRUNK if scaled else ()))
    deviations = [(k, text) for k, text in off.items() if k not in PASSING and not k.startswith(aside)]
    place = RunConditions(scaled, as_text(environment.get("device_name") or ""), tuple(deviations))
    if scaled:  # what was shrunk is as it is on purpose
        of_arms = {key for key in of_arms if not key.startswith(SHRUNK)}
    elif others := [text for key, text in off.items() if key.startswith(IDENTITY)]:
        return place, "", some(others, 3)
    for arm in sorted(published, key=lambda arm: arm != run.option("published.arm")):
        if not any(_unlike(measured, published[arm], of_arms)):
            return place, arm, ""
    told = some([f"{key} {_shown(measured[key])}" for key in sorted(of_arms) if key in measured], 3)
    return place, "", f"{told} is none of its arms ({some(list(published), 6)})"


def _unlike(
    measured: Mapping[str, Any], published: Mapping[str, Any], keys: Iterable[str]
) -> Iterator[tuple[str, str]]:
    """What is not the same: (key, `batch_size 128 (published 256)`). What a publication left to the machine
    is as it came out; 0.1 is 1e-1.
    """
    for key in keys:
        one, other = measured.get(key), published.get(key)
        if other != AUTO and numeric_sort_key(as_text(one)) != numeric_sort_key(as_text(other)):
            yield key, f"{key} {_shown(one)} (published {_shown(other)})"


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
    name, device_names = _name_parts(published), [_name_parts(device) for device in devices]
    return bool(name and device_names) and all(
        (name <= other or other <= name) and all(map(_MORE.fullmatch, name ^ other)) for other in device_names
    )


def _name_parts(name: str) -> frozenset[str]:
    text = re.sub(r"\((?:r|tm|c)\)|[®™]", " ", name.lower())
    text = re.sub(r"(\d+)[ -]?gi?b\b", r" \1gb ", text)
    return frozenset(word for word in re.split(r"[^a-z0-9.]+", text) if word and word not in MAKERS)
