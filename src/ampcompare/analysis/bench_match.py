"""Decide whether a benchmark measured what the runs of a report trained: the same network, data and code.

The benchmark's file has a fingerprint, and each run's record has the same facts. A fact that only one of the
two has is not compared.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import PurePath
from typing import Any

from ampcompare.analysis.grouping.groups import BACKEND, Group
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
from ampcompare.runs.nested import lookup
from ampcompare.runtime.formatting import listed

VERSION = "package_version"
MODEL, SOURCE, FUSED = "model.name", "data.source", "optimizer.fused"
NOT_VERIFIED = (
    "The benchmark file does not record its network, data and code, so nothing shows that it measured what "
    "the runs trained. Repeat the benchmark with this version of `ampcompare bench`."
)
# Facts that the file calls by another name than the options and `run.json`.
FILE_NAMES = {"model": MODEL, "data": SOURCE, "data_fingerprint": "data"}


def identity_differences(
    fingerprint: Mapping[str, Any], options: Mapping[str, str], group: Group
) -> list[str]:
    """Return the facts of network, data and code that differ between a benchmark and the runs of a group."""
    return [
        name
        for name in _differences(fingerprint, options, group)
        if role_of(_key_of(name)) in BENCHMARK.equal - {Role.EXECUTION}
    ]


def tolerated_differences(
    fingerprint: Mapping[str, Any], options: Mapping[str, str], group: Group
) -> list[str]:
    """Return the settings that differ although the benchmark's speed is still used."""
    version = fingerprint.get(VERSION)
    recorded = [lookup(run.environment, "packages.ampcompare") for run in group.all_rows["run"]]
    is_other_version = version is not None and any(one not in (None, version) for one in recorded)
    names = [name for name in _differences(fingerprint, options, group) if _is_reported(name)]
    return [VERSION, *names] if is_other_version else names


def is_same_execution(options: Mapping[str, str], group: Group) -> bool:
    """Return whether the execution of a bench arm is that of a group's runs."""
    names = _differences({}, options, group)
    return not any(role_of(name) is Role.EXECUTION and not _is_reported(name) for name in names)


def refuse_other_work(
    file: str, fingerprint: Mapping[str, Any], arms: Sequence[Mapping[str, str]], groups: Iterable[Group]
) -> None:
    """Raise an error if the benchmark measured another network, other data or other code than every group.

    Raises:
        UserError: Network, data or code differ from those of every group.
    """
    nearest: list[str] = []
    for group in groups:
        per_arm = [identity_differences(fingerprint, options, group) for options in arms]
        if not all(per_arm):
            return
        nearest = nearest or min(per_arm, key=len, default=[])
    if nearest:
        raise UserError(
            f"--bench {file!r}: the benchmark measured another network, other data or other code than the "
            f"runs: they differ in {listed(nearest)}; run `ampcompare bench` with the code and the options "
            "of the runs"
        )


def _differences(fingerprint: Mapping[str, Any], options: Mapping[str, str], group: Group) -> list[str]:
    """Return each fact that differs from any run of a group, by its name in the file and in its order."""
    return [*_differences_in(fingerprint, group), *_differences_in(options, group)]


def _differences_in(facts: Mapping[str, Any], group: Group) -> Iterator[str]:
    named = {FILE_NAMES.get(name, name): value for name, value in facts.items() if name != VERSION}
    bench = RunIdentity.of_parts(named, is_complete=False)
    pairs = (pair for own in group.identities for pair in differences(bench, own, BENCHMARK.roles))
    differing = dict.fromkeys(p.key for p in pairs if p.key != BACKEND and not _counts_as_same(p))
    names = {_key_of(name): name for name in facts}
    yield from (names.get(key, key) for key in differing)


def _is_reported(name: str) -> bool:
    key = _key_of(name)
    return key in BENCHMARK.reported_keys or role_of(key) in BENCHMARK.reported


def _key_of(name: str) -> str:
    return key_of(FILE_NAMES.get(name, name))


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
