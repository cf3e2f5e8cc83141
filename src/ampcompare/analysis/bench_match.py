"""Decide whether a benchmark measured what the runs of a report trained: the same network, data and code.

The benchmark's file has a fingerprint, and each run's record has the same facts. A fact that only one of the
two has is not compared.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import PurePath
from typing import Any, NamedTuple

from ampcompare import metrics
from ampcompare.analysis.grouping.groups import BACKEND, Group
from ampcompare.data.sources import SOURCES
from ampcompare.errors import UserError
from ampcompare.runs import RunRecord
from ampcompare.runs.nested import as_text, lookup
from ampcompare.runtime.formatting import listed, printable, short

VERSION = "package_version"
# An arm and the runs may differ in these options; the report says so. All others must be equal.
TOLERATED = ("batch_size", "training.accumulate", "memory_format", "optimizer.name")
NETWORK = ("model.name", "model.stem")
NOT_VERIFIED = (
    "The benchmark file does not record its network, data and code, so nothing shows that it measured what "
    "the runs trained. Repeat the benchmark with this version of `ampcompare bench`."
)
# The option that has a fact of the fingerprint, if its name is not that of the fact.
OPTION_OF = {"model": "model.name", "data": "data.source"}
# The option whose code or data a hash is of.
HASHED = {
    "model_source": "model.name",
    "data_source": "data.source",
    "backend_source": BACKEND,
    "data_fingerprint": "data.source",
    "test_set": "data.source",
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
    facts = {key: value for key, value in fingerprint.items() if key != VERSION}
    facts |= {key: options[key] for key in NETWORK if key in options}
    return list(_differences(facts, group.all_rows["run"]))


def tolerated_differences(
    fingerprint: Mapping[str, Any], options: Mapping[str, str], group: Group
) -> list[FactDifference]:
    """Return the settings that differ although the benchmark's speed is still used."""
    facts = {VERSION: fingerprint.get(VERSION)} | {key: options[key] for key in TOLERATED if key in options}
    return list(_differences(facts, group.all_rows["run"]))


def is_same_execution(options: Mapping[str, str], group: Group) -> bool:
    """Return whether the other options of a bench arm, such as its execution, are those of a group's runs."""
    others = {k: v for k, v in options.items() if k not in (BACKEND, *TOLERATED, *NETWORK)}
    return not list(_differences(others, group.all_rows["run"]))


def refuse_other_work(
    file: str, fingerprint: Mapping[str, Any], arms: Sequence[Mapping[str, str]], groups: Iterable[Group]
) -> None:
    """Raise an error if the benchmark measured another network, other data or other code than every group.

    Raises:
        UserError: Network, data or code differ from those of every group.
    """
    fewest: list[FactDifference] = []
    records: list[RunRecord] = []
    for group in groups:
        per_arm = [identity_differences(fingerprint, options, group) for options in arms]
        if not all(per_arm):
            return
        if not fewest:
            fewest, records = min(per_arm, key=len), list(group.all_rows["run"])
    if fewest:
        key, bench, runs = fewest[0]
        facts = f"{key} is {bench}, the runs have {listed(runs)}"
        action = "run `ampcompare bench` with the options of the runs"
        what = _what(key)
        options = [run.option(HASHED[key]) for run in records] if key in HASHED else []
        if values := dict.fromkeys(short(printable(as_text(value))) for value in options if value):
            noun, verb = ("code", "differs") if what == "other code" else ("data", "differ")
            hashes = f"({key}: {bench} in the benchmark, {listed(runs)} in the runs)"
            facts = f"the {noun} of {HASHED[key]}={listed(values)} {verb}"
            action = f"run `ampcompare bench` with the {noun} and options of the runs {hashes}"
        raise UserError(f"--bench {file!r}: the benchmark measured {what} than the runs: {facts}; {action}")


def _what(key: str) -> str:
    if key in ("model", *NETWORK):
        return "another network"
    return "other data" if key in ("data", "data_fingerprint", "test_set") else "other code"


def _differences(facts: Mapping[str, Any], runs: Iterable[RunRecord]) -> Iterator[FactDifference]:
    records = list(runs)
    for key, value in facts.items():
        if value is None:
            continue
        recorded = [text for run in records if (text := _recorded(run, key)) is not None]
        if other_values := [text for text in recorded if not _is_same(key, as_text(value), text)]:
            distinct = dict.fromkeys(short(printable(text)) for text in other_values)
            yield FactDifference(key, short(printable(as_text(value))), tuple(distinct))


def _recorded(run: RunRecord, key: str) -> str | None:
    """Return what a run's record says about a fact, None if it says nothing."""
    if key == VERSION:
        value = lookup(run.environment, "packages.ampcompare", None)
    elif key == "test_set":
        value = lookup(run.summary, metrics.TEST_SET, None)
    elif key in OPTION_OF:
        value = run.option(OPTION_OF[key])
    else:  # the environment has the resolved value of `auto`
        value = run.environment.get(key)
        value = run.option(key) if value is None else value
    return None if value is None or isinstance(value, Mapping | list) else as_text(value)


def _is_same(key: str, bench: str, run: str) -> bool:
    if key == "data_fingerprint":  # after the dash come the limits on the number of samples
        bench, run = bench.partition("-")[0], run.partition("-")[0]
    if bench == run:
        return True
    # The same file under another path. Its hash tells whether its text is the same.
    if key in ("model", "data", "model.name") and PurePath(bench).name == PurePath(run).name:
        return True
    if key == "data" and bench in SOURCES and SOURCES[bench].is_synthetic:
        # `bench` uses synthetic images in place of one of our data sets with a known shape.
        return run in SOURCES and bool(SOURCES[run].classes)
    return False
