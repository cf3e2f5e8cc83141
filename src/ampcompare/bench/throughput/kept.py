"""Measurements that outlive the benchmark that took them: one that was cut short goes on. Free of torch."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ampcompare.errors import UserError, reason

NAME = "rounds.jsonl"
# Figures taken under another of these are of another machine or another program.
SAME = ("device_name", "driver", "torch", "cuda", "cudnn", "git_commit")


class Kept:
    """The measurements in `folder`, one JSON line each. Raises UserError where they cannot be used."""

    def __init__(self, folder: Path, environment: Mapping[str, Any]) -> None:
        self.path = folder / NAME
        self.environment = {key: environment.get(key) for key in SAME}
        self.found: list[dict[str, Any]] = []
        try:
            folder.mkdir(parents=True, exist_ok=True)
            lines = self.path.read_text().splitlines(keepends=True) if self.path.is_file() else []
            whole = [line for line in lines if line.endswith("\n")]  # the last may have been cut
            if len(whole) < len(lines):
                self.path.write_text("".join(whole))
            self.found = [json.loads(line) for line in whole]
        except (OSError, ValueError) as problem:
            raise UserError(f"--go-on: {self.path} cannot be used ({problem}); remove it") from None

    def results(self, request: Mapping[str, Any]) -> list[dict[str, Any]]:
        """What was measured of this request here, oldest first."""
        here = [f for f in self.found if f["environment"] == self.environment]
        return [f["result"] for f in here if f["request"] == request]

    def add(self, request: Mapping[str, Any], result: dict[str, Any]) -> None:
        """Keep one, on the disk when this returns."""
        line = json.dumps({"request": request, "environment": self.environment, "result": result})
        try:
            with self.path.open("a") as file:
                file.write(f"{line}\n")
                file.flush()
                os.fsync(file.fileno())
        except OSError as problem:
            why = f"cannot be written ({reason(problem)})"
            raise UserError(f"--go-on: {self.path} {why}; mend --out") from None
