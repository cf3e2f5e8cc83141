"""Files of runs on W&B's server, fetched when the first of them is asked for."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from ampcompare.errors import UserError, reason
from ampcompare.records.predictions import Download, Unusable, read_small, too_large


class Downloads:
    """The files of one name of a set of runs, all fetched by one connection: a report wants them together.

    `ask` calls what it is given with an API of W&B's client, and raises UserError where the server cannot be
    asked.
    """

    def __init__(self, name: str, ask: Callable[[Callable[[Any], None]], None]) -> None:
        self._name, self._ask = name, ask
        self._runs: list[str] = []
        self._found: dict[str, bytes | Unusable | None] | None = None

    def of(self, run: str) -> Download:
        """What fetches a run's file, as `RunRecord.download`; `run` is `entity/project/id`."""
        self._runs.append(run)

        def download(name: str, limit: int) -> bytes | None:
            found = self._all(limit)[run]
            if isinstance(found, Unusable):
                raise found
            return found

        return download

    def _all(self, limit: int) -> dict[str, bytes | Unusable | None]:
        if self._found is None:
            found: dict[str, bytes | Unusable | None] = {}
            try:
                self._ask(lambda api: found.update((run, self._fetch(api, run, limit)) for run in self._runs))
            except UserError as problem:
                lost = Unusable(f"cannot be had ({problem.lines[0]})")
                for run in self._runs:
                    found.setdefault(run, lost)
            self._found = found
        return self._found

    def _fetch(self, api: Any, run: str, limit: int) -> bytes | Unusable | None:
        try:
            file = next((f for f in api.run(run).files(names=[self._name]) if f.name == self._name), None)
            if file is None or not file.size:  # the server's word for a file that it does not have
                return None
            if file.size > limit:
                raise Unusable(too_large())
            with TemporaryDirectory() as folder:
                file.download(root=folder).close()
                return read_small(Path(folder) / self._name)
        except Unusable as problem:
            return problem
        except Exception as problem:  # W&B's client raises many kinds; one run's file is no reason to end
            return Unusable(f"cannot be had ({reason(problem)})")
