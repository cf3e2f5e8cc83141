"""The two parts of the tests, as the Makefile names them."""

from __future__ import annotations

import shlex
import subprocess

from _pytest.mark.expression import Expression
from support.quick import ROOT


def expressions(target: str) -> list[str]:
    """The marker expressions of each pytest that a target of the Makefile starts."""
    said = subprocess.run(["make", "-n", target], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    lines = [shlex.split(line) for line in said.splitlines() if " pytest " in line]
    return [words[words.index("-m", words.index("pytest")) + 1] for words in lines]


def test_every_test_is_in_exactly_one_of_the_two_parts():
    parts = [Expression.compile(text) for text in expressions("test-all")]
    for is_rest in (False, True):
        chosen = [part.evaluate(lambda name, **_: name == "rest" and is_rest) for part in parts]  # noqa: B023
        assert sorted(chosen) == [False, True]


def test_both_parts_are_what_test_and_test_rest_run():
    assert [*expressions("test"), *expressions("test-rest")] == expressions("test-all")
