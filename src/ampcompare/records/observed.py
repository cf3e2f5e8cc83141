"""What W&B's server has of the machines of runs, fetched for all of them when the first is asked for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ampcompare.errors import UserError, reason
from ampcompare.records.system import Machine, Samples, facts_of_metadata

MOST_SAMPLES = 2_000  # of a run; the server thins out what is more


class Observed:
    """The machines of a set of runs. `ask` calls what it is given with an API of W&B's client, and raises
    UserError where the server cannot be asked. `problems` of a run are told what could not be had.
    """

    def __init__(self, ask: Callable[[Callable[[Any], None]], None]) -> None:
        self._ask = ask
        self._problems: dict[str, list[str]] = {}
        self._found: dict[str, Machine] | None = None

    def of(self, run: str, problems: list[str]) -> Callable[[], Machine]:
        """What looks up one run, `entity/project/id`."""
        self._problems[run] = problems
        return lambda: self._all()[run]

    def _all(self) -> dict[str, Machine]:
        if self._found is None:
            found: dict[str, Machine] = {}
            try:
                self._ask(lambda api: found.update((run, self._fetch(api, run)) for run in self._problems))
            except UserError as problem:
                for run in self._problems.keys() - found.keys():
                    self._tell(run, problem.lines[0])
            self._found = {run: found.get(run, Machine()) for run in self._problems}
        return self._found

    def _fetch(self, api: Any, name: str) -> Machine:
        samples, facts = Samples(), {}
        try:
            run = api.run(name)
            for event in run.history(samples=MOST_SAMPLES, pandas=False, stream="system"):
                samples.add_event(event)
            facts = facts_of_metadata(run.metadata)
        except Exception as problem:  # W&B's client raises many kinds; one run is no reason to end
            self._tell(name, reason(problem))
        return Machine(samples.arrays(), facts)

    def _tell(self, run: str, why: str) -> None:
        self._problems[run].append(f"W&B's system metrics cannot be had ({why}).")
