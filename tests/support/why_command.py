"""`ampcompare why` in the process of a test."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from ampcompare.cli import main


class Why:
    """Runs the command in the working directory of a test."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self._capsys = capsys

    def __call__(self, *words: object, code: int = 0) -> str:
        """Return what the command prints; of one that refuses its input, the error, which is one line."""
        self._capsys.readouterr()
        with pytest.raises(SystemExit) as end:
            main(["why", *map(str, words)])
        shown = self._capsys.readouterr()
        assert (end.value.code or 0) == code, shown.err
        errors = [line for line in shown.err.splitlines() if line.startswith("error: ")]
        if code == 2:
            assert len(errors) == 1
            return errors[0]
        return shown.out + shown.err

    def json(self, *words: object) -> tuple[dict[str, Any], str]:
        """Return what the command writes as JSON, and what it prints."""
        output = self(*words, "--json", "result.json")
        return json.loads(Path("result.json").read_text()), output

    @staticmethod
    def step(output: str) -> int:
        """Return the step of a recorded run that the command looks at."""
        match = re.search(r"^step ([\d,]+): ", output, flags=re.M)
        assert match, output
        return int(match[1].replace(",", ""))
