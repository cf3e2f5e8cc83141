"""The sentences that users read, all in one place, so that a reviewer can read them aloud.

`golden/sentences_*.yaml` hold every sentence of the source by module. They are no contract: a sentence may
change at any time. The golden files show each change as one line of a diff. To write them again:

    AMPCOMPARE_UPDATE_GOLDEN=1 python -m pytest tests/contract/test_sentences.py
"""

import doctest
import os
from pathlib import Path

import pytest
import yaml
from support import sentences
from support.contract import describe_differences, dump
from support.quick import ROOT
from support.sentences import sentences_of

GOLDEN = Path(__file__).parent / "golden"
PACKAGE = ROOT / "src" / "ampcompare"
UPDATE = "AMPCOMPARE_UPDATE_GOLDEN"
HINT = f"the sentences have changed; write the file again: {UPDATE}=1 python -m pytest {{}}"
TEXT_FILES = ("*.py", "*.j2", "*.js")


def files_in(*folders: str) -> set[Path]:
    return {
        file for folder in folders for pattern in TEXT_FILES for file in (PACKAGE / folder).rglob(pattern)
    }


# Page, Markdown, terminal and JSON show the sentences of the analysis. The page alone has those of `page`.
PAGE = files_in("report/page", "report/charts")
SURFACES = {
    "sentences_analysis": ("on every output of a report", files_in("analysis")),
    "sentences_page": ("on the page of a report and its charts", PAGE),
    "sentences_report": ("in the table, Markdown, CSV and W&B views of a report", files_in("report") - PAGE),
    "sentences_terminal": ("of all commands but the report", files_in(".") - files_in("analysis", "report")),
}


@pytest.mark.parametrize("name", SURFACES)
def test_the_sentences_are_those_of_the_golden_file(name: str):
    golden = GOLDEN / f"{name}.yaml"
    where, files = SURFACES[name]
    now = sentences_of(files, PACKAGE)
    assert now
    if os.environ.get(UPDATE):
        golden.write_text(f"# Sentences {where}, by module. Written by {UPDATE}=1.\n{dump(now)}", "utf-8")
    differences = describe_differences(_read(golden), now)
    assert not differences, "\n".join([HINT.format(Path(__file__).relative_to(ROOT)), *differences])


def _read(golden: Path) -> dict[str, list[str]]:
    return yaml.safe_load(golden.read_text("utf-8")) if golden.exists() else {}


def test_every_module_belongs_to_one_surface():
    every: list[Path] = [file for _, files in SURFACES.values() for file in files]
    assert sorted(every) == sorted(files_in("."))


def test_the_examples_of_the_collector_hold():
    results = doctest.testmod(sentences)
    assert (results.failed, results.attempted > 0) == (0, True)
