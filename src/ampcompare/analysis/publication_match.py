"""Assign runs to the arms of a publication: a run belongs to the arm that has its canonical settings."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import pandas as pd

from ampcompare.analysis.grouping.compared_metric import ComparedMetric
from ampcompare.analysis.grouping.distinguishing_settings import BACKEND, NOT_SET, is_perturbed
from ampcompare.analysis.grouping.groups import Group, group_runs
from ampcompare.analysis.grouping.run_table import RUN, describe_device
from ampcompare.config.option_spec import Role
from ampcompare.config.schema import OPTIONS, TF32
from ampcompare.errors import UserError
from ampcompare.identity.agreement import PUBLICATION
from ampcompare.identity.run_identity import AUTO, RunIdentity, differences, role_of
from ampcompare.publications.publication import Publication
from ampcompare.runs import RunRecord
from ampcompare.runs.nested import as_text
from ampcompare.runtime.formatting import group_by_reason, listed, plural, printable, short, some

NAMES = ("model.name", "data.source")  # a run must record these
# Options that `published.scale` and `published.network` change (`config/publication_config.py`).
SHRUNK = (
    "model.",
    "data.",
    "batch_size",
    "epochs",
    "max_steps",
    "eval.batch_size",
    "schedule.warmup_epochs",
    "schedule.milestones",
)
# Words that do not tell how fast a device is.
MAKERS = frozenset(
    "nvidia amd intel geforce tesla quadro gpu cpu gpus graphics card single one 1x x1 server edition".split()
)
# memory size and form factor, which a name may leave out
_MORE = re.compile(r"\d+gb|hbm\d*e?|(?:sxm|pci|nvl)[\de]*")


class RunConditions(NamedTuple):
    """The conditions under which runs of an arm were made.

    Attributes:
        scaled: How the training was scaled down, "" in full size.
        device: Its name as recorded, "" if it is unknown.
        deviations: Options that differ from the publication: key, and text such as `batch_size 128 (published
            256)`.
    """

    scaled: str
    device: str
    deviations: tuple[tuple[str, str], ...]

    @property
    def text(self) -> str:
        """The conditions in words."""
        deviations = [text for _, text in self.deviations]
        texts = [text for text in (self.scaled, *deviations, self.device) if text]
        return some(texts, 3) or "as published"


@dataclass(frozen=True)
class PublicationMatch:
    """The runs of each arm, all made under the same conditions.

    Attributes:
        arms: The largest group of each arm.
        scaled: How the training was scaled down, "" in full size.
        deviations: The options that differ from the publication, as text by key.
        left_out: Which runs were left out, and why.
        same_card: Whether all runs were made on the published device.
    """

    arms: Mapping[str, Group]
    scaled: str
    deviations: Mapping[str, str]
    left_out: tuple[str, ...]
    same_card: bool

    @property
    def devices(self) -> tuple[str, ...]:
        """The devices of all runs, in words."""
        rows = (row for group in self.arms.values() for _, row in group.rows.iterrows())
        return tuple(dict.fromkeys(map(describe_device, rows)))


def match_runs(
    publication: Publication, rows: pd.DataFrame, metric: ComparedMetric, ignored: frozenset[str]
) -> PublicationMatch:
    """Assign the runs of a table to the arms of a publication.

    Args:
        metric: The metric of the groups, which a publication need not report.
        ignored: Settings that may differ within a group.

    Raises:
        UserError: No run has the model, the data and an arm of the publication, or the runs were made under
            several conditions.
    """
    published = {
        arm: RunIdentity.of_run({**publication.setting, **own}) for arm, own in publication.arms.items()
    }
    found: dict[RunConditions, None] = {}
    numbers_by_arm: dict[str, list[int]] = {}
    refused: list[tuple[str, str]] = []  # names of runs, and why they belong to no arm
    for number, run in enumerate(rows[RUN]):
        if is_perturbed(run):  # the control "chaos" of the baseline
            continue
        conditions, arm, reason = _conditions_of(run, publication, published)
        if reason:
            refused.append((short(printable(f"{run.name or 'run'} ({run.id})"), 80), reason))
        else:
            found[conditions] = None
            numbers_by_arm.setdefault(arm, []).append(number)
    if not found:
        reasons = short("; ".join(dict.fromkeys(reason for _, reason in refused)), 300)
        raise UserError(
            f"{publication.name}: none of {plural(len(refused), 'run')} matches the publication: {reasons}"
        )
    conditions, *others = found
    if others:
        texts = listed(one.text for one in found)
        raise UserError(f"{publication.name}: the runs differ ({texts}); pass the runs of one of these alone")
    left_out = [f"{names}: {reason}" for names, reason in group_by_reason(refused, 3)]
    arms = {}
    for arm in (arm for arm in publication.arms if arm in numbers_by_arm):
        pooled = group_runs(rows.iloc[numbers_by_arm[arm]], metric, (BACKEND,), ignored)
        groups = sorted((g for g in pooled if g.n and not g.is_control), key=lambda group: -group.n)
        if groups:
            arms[arm] = groups[0]
        left_out += [f"{plural(len(g.all_rows), 'run')} of {arm}: {g.display_name}" for g in groups[1:]]
    if not arms:
        raise UserError(f"{publication.name}: the matching runs have no values yet")
    devices = {name for group in arms.values() for name in group.devices}
    return PublicationMatch(
        arms=arms,
        scaled=conditions.scaled,
        deviations=dict(conditions.deviations),
        left_out=tuple(map(printable, left_out)),
        same_card=is_same_card(publication.hardware, devices),
    )


def _conditions_of(
    run: RunRecord, publication: Publication, published: Mapping[str, RunIdentity]
) -> tuple[RunConditions, str, str]:
    """Return the conditions of a run and its arm, or why it belongs to no arm."""
    scaled = _scale_of(publication, run)
    identity = RunIdentity.of_run(run.config, run.environment)
    # A network or data that are not recorded are no default.
    lacking = {key: "not recorded" for key in NAMES if run.option(key) is None}
    measured = RunIdentity({**identity.options, **lacking}, identity.facts)
    arm_keys = {BACKEND, *publication.arm_keys}
    # The backend `tf32` sets the switch `tf32`, so arms with and without it differ in the switch.
    if any(arm.options[BACKEND] == TF32 for arm in published.values()):
        arm_keys.add(TF32)
    shrunk = SHRUNK if scaled else ()  # options that scaling changes
    unlike_baseline = _unlike(published[publication.baseline], measured)
    others = {
        k: text for k, text in unlike_baseline.items() if k not in arm_keys and not k.startswith(shrunk)
    }
    arm_keys = {key for key in arm_keys if not key.startswith(shrunk)}
    deviations = [
        (key, text)
        for key, text in others.items()
        if key in PUBLICATION.reported_keys or role_of(key) in PUBLICATION.reported
    ]
    device = as_text(run.environment.get("device_name") or "")
    conditions = RunConditions(scaled, device, tuple(deviations))

    refused = [text for key, text in others.items() if role_of(key) in PUBLICATION.equal]
    if refused and not scaled:
        return conditions, "", some(refused, 3)
    for arm in sorted(published, key=lambda arm: arm != run.option("published.arm")):
        if arm_keys.isdisjoint(_unlike(published[arm], measured)):
            return conditions, arm, ""
    options = measured.options
    settings = some([f"{key} {_shown(options[key])}" for key in sorted(arm_keys) if key in options], 3)
    return conditions, "", f"{settings} matches no arm of the publication ({some(list(published), 6)})"


def _unlike(published: RunIdentity, measured: RunIdentity) -> dict[str, str]:
    """Return each key that differs, with a text such as `batch_size 128 (published 256)`.

    A value that the publication leaves to the machine (`auto`) equals any value.
    """
    return {
        key: f"{key} {_shown_of(key, value)} (published {_shown_of(key, published_value)})"
        for key, published_value, value in differences(published, measured, set(Role))
        if published_value != AUTO
    }


def _scale_of(publication: Publication, run: RunRecord) -> str:
    """Return how a run of this publication was scaled down, in words; "" for full size and for other runs."""
    name = as_text(run.option("published.name")).replace("\\", "/").rpartition("/")[2]
    if name.removesuffix(".yaml") != publication.name:
        return ""
    scale = run.option("published.scale")
    network = run.option("published.network")
    at_scale = "" if scale in (None, 1) else f"at scale {_shown(scale)}"
    with_network = "" if network is None else f"with the network {_shown(network)}"
    return f"{at_scale} {with_network}".strip()


def _shown_of(key: str, value: Any) -> str:
    return NOT_SET if value is None and key not in OPTIONS else _shown(value)


def _shown(value: Any) -> str:
    return short(printable(as_text(value)), 60)


def is_same_card(published: str, devices: Iterable[str]) -> bool:
    """Return whether all devices are the published one.

    Names are compared by their words. One of two names may leave out memory size and form factor. An unknown
    name is never the same.

    >>> is_same_card("Tesla V100", ["Tesla V100-SXM2-16GB"]), is_same_card("RTX 2080", ["RTX 2080 Ti"])
    (True, False)
    >>> is_same_card("H100 PCIe", ["NVIDIA H100 SXM"])
    False
    """
    name = _name_parts(published)
    others = [_name_parts(device) for device in devices]
    return bool(name and others) and all(
        (name <= other or other <= name) and all(map(_MORE.fullmatch, name ^ other)) for other in others
    )


def _name_parts(name: str) -> frozenset[str]:
    text = re.sub(r"\((?:r|tm|c)\)|[®™]", " ", name.lower())
    text = re.sub(r"(\d+)[ -]?gi?b\b", r" \1gb ", text)
    return frozenset(word for word in re.split(r"[^a-z0-9.]+", text) if word and word not in MAKERS)
