"""The training that is looked at, built as a run builds it, without a record."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ampcompare.config.arguments import parse
from ampcompare.config.check import settle
from ampcompare.config.load import Config
from ampcompare.config.sweep_choice import check_chosen


def configured(words: Sequence[str], **instead: Any) -> Config:
    """The config that the words of a run name, each option in `instead` (`backend="none"`) put in its place.

    Raises UserError.
    """
    given = [f"{key}={value}" for key, value in instead.items()]
    config = parse([*words, *given])
    check_chosen(config)
    settle(config)
    return config
