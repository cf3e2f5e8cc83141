"""Decide whether a benchmark measured what the runs of a report trained: the same network, data and code.

The benchmark's file has a fingerprint, and each run's record has the same facts. A fact that only one of the
two has is not compared.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import PurePath
from typing import Any, NamedTuple

from ampcompare import metrics
from ampcompare.analysis.grouping.groups import BACKEND, NOT_SET, Group
from ampcompare.config.option_spec import Role
from ampcompare.data.sources import SOURCES
from ampcompare.errors import UserError
from ampcompare.identity.agreement import BENCHMARK
from ampcompare.identity.run_identity import (
    DATA,
    Difference,
    RunIdentity,
    differences,
    key_of,
    role_of,
    value_text,
)
from ampcompare.runs.nested import as_text, lookup
from ampcompare.runtime.formatting import listed, printable, short

VERSION = "package_version"
MODEL, SOURCE, FUSED = "model.name", "data.source", "optimizer.fused"
OTHER_CODE = "other code"
NOT_VERIFIED = (
    "The benchmark file does not record its network, data and code, so nothing shows that it measured what "
    "the runs trained. Repeat the benchmark with this version of `ampcompare bench`."
)
# Facts that the file calls by another name than the options and `run.json`.
FILE_NAMES = {"model": MODEL, "data": SOURCE, "data_fingerprint": "data"}
# The option whose code or data a fact is of.
OPTION_OF = {
    "model_source": MODEL,
    "data_source": SOURCE,
    "backend_source": BACKEND,
    "data_fingerprint": SOURCE,
    "test_set": SOURCE,
    "task_loss_source": "task.loss",
}


class FactDifference(NamedTuple):
    """A fact with its value in the benchmark and its values in the runs."""

    key: str
    bench: str
    runs: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.key} {self.bench} (the runs: {listed(self.runs)})"


def identity_differences(
    fingerprint: Mapping[str, Any], options: Mapping[str, str], group: Group
) -> list[FactDifference]:
    """Return the facts of network, data and code that differ between a benchmark and the runs of a group."""
    return [
        difference
        for difference in _differences(fingerprint, options, group)
        if role_of(_key_of(difference.key)) in BENCHMARK.equal - {Role.EXECUTION}
    ]


def tolerated_differences(
    fingerprint: Mapping[str, Any], options: Mapping[str, str], group: Group
) -> list[FactDifference]:
    """Return the settings that differ although the benchmark's speed is still used."""
    found = []
    version = fingerprint.get(VERSION)
    if version is not None:
        recorded = [lookup(run.environment, "packages.ampcompare") for run in group.all_rows["run"]]
        others = [one for one in recorded if one is not None and as_text(one) != version]
        if others:
            texts = tuple(dict.fromkeys(_shown(as_text(one)) for one in others))
            found.append(FactDifference(VERSION, _shown(version), texts))
    found += [pair for pair in _differences(fingerprint, options, group) if _is_reported(pair.key)]
    return found


def is_same_execution(options: Mapping[str, str], group: Group) -> bool:
    """Return whether the execution of a bench arm is that of a group's runs."""
    return not any(
        role_of(difference.key) is Role.EXECUTION and not _is_reported(difference.key)
        for difference in _differences({}, options, group)
    )


def refuse_other_work(
    file: str, fingerprint: Mapping[str, Any], arms: Sequence[Mapping[str, str]], groups: Iterable[Group]
) -> None:
    """Raise an error if the benchmark measured another network, other data or other code than every group.

    Raises:
        UserError: Network, data or code differ from those of every group.
    """
    nearest: tuple[FactDifference, Group] | None = None
    for group in groups:
        per_arm = [identity_differences(fingerprint, options, group) for options in arms]
        if not all(per_arm):
            return
        if nearest is None:
            fewest = min(per_arm, key=len, default=[])
            nearest = (fewest[0], group) if fewest else None
    if nearest is not None:
        raise _other_work(file, *nearest)


def _other_work(file: str, difference: FactDifference, group: Group) -> UserError:
    key, bench, runs = difference
    what = _what(key)
    option = OPTION_OF.get(key, "")
    recorded = [run.option(option) for run in group.all_rows["run"]] if option else []
    values = dict.fromkeys(short(printable(as_text(value))) for value in recorded if value)
    if not values:
        return UserError(
            f"--bench {file!r}: the benchmark measured {what} than the runs: {key} is {bench}, the runs have "
            f"{listed(runs)}; run `ampcompare bench` with the options of the runs"
        )
    noun, verb = ("code", "differs") if what == OTHER_CODE else ("data", "differ")
    return UserError(
        f"--bench {file!r}: the benchmark measured {what} than the runs: the {noun} of "
        f"{option}={listed(values)} {verb}; run `ampcompare bench` with the {noun} and options of the runs "
        f"({key}: {bench} in the benchmark, {listed(runs)} in the runs)"
    )


def _what(key: str) -> str:
    role = role_of(_key_of(key))
    if role is Role.NETWORK or key == metrics.MODEL_PARAMETERS:
        return "another network"
    return "other data" if role is Role.DATA else OTHER_CODE


def _differences(
    fingerprint: Mapping[str, Any], options: Mapping[str, str], group: Group
) -> list[FactDifference]:
    """Return each fact that differs from any run of a group, by its name in the file and in its order."""
    return [*_differences_in(fingerprint, group), *_differences_in(options, group)]


def _differences_in(facts: Mapping[str, Any], group: Group) -> Iterator[FactDifference]:
    named = {FILE_NAMES.get(name, name): value for name, value in facts.items() if name != VERSION}
    bench = RunIdentity.of_parts(named, is_complete=False)
    values_of_runs: dict[str, dict[str, None]] = {}  # by key
    for identity in group.identities:
        for pair in differences(bench, identity, BENCHMARK.roles):
            if pair.key != BACKEND and not _counts_as_same(pair):
                values_of_runs.setdefault(pair.key, {})[_shown(pair.second)] = None
    names = {_key_of(name): name for name in facts}
    for key in {**names, **values_of_runs}:
        if key in values_of_runs:
            name = names.get(key, key)
            yield FactDifference(name, _shown(facts.get(name, NOT_SET)), tuple(values_of_runs[key]))


def _is_reported(name: str) -> bool:
    key = _key_of(name)
    return key in BENCHMARK.reported_keys or role_of(key) in BENCHMARK.reported


def _key_of(name: str) -> str:
    return key_of(FILE_NAMES.get(name, name))


def _shown(value: Any) -> str:
    return short(printable(value_text(value)))


def _counts_as_same(pair: Difference) -> bool:
    """Return whether values that differ in their text are one for a benchmark."""
    key = pair.key
    bench = value_text(pair.first)
    run = value_text(pair.second)
    if key == DATA:  # after the dash come the limits on the number of samples
        return bench.partition("-")[0] == run.partition("-")[0]
    if key == FUSED and "null" in (bench, run):  # null leaves it to the device, which is the same
        return True
    # The same file under another path. Its hash tells whether its text is the same.
    if key in (MODEL, SOURCE) and PurePath(bench).name == PurePath(run).name:
        return True
    if key == SOURCE and bench in SOURCES and SOURCES[bench].is_synthetic:
        # `bench` uses synthetic images in place of one of our data sets with a known shape.
        return run in SOURCES and bool(SOURCES[run].classes)
    return False
