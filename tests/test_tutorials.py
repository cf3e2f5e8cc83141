"""The pages that a new user follows: every file and every command of theirs works as the page shows it.

Where the page trains for minutes, the test trains less: `SHORTER` replaces only counts of epochs and samples.
"""

import ast
import re
from pathlib import Path

import pytest
from support.documents import SHELL, Block, read_blocks, run_commands, write_files
from support.quick import ROOT

from ampcompare import load_runs

PAGES = ("getting-started", "transformer", "custom-models", "backends", "extending")
# What the page has, and what the test takes in its place.
SHORTER = {
    "--config demo": "--config demo epochs=1 data.train_limit=64 data.test_limit=32",
    "data.train_limit=null data.test_limit=null": "data.kwargs.count=64 data.train_limit=null data.test_limit=null",
    "4000 if train else 2000": "256 if train else 128",
    "epochs=5": "epochs=1",
    "--json bench.json": "--minutes 0.05 --json bench.json",
    "backend=none,native_bf16\nampcompare run": "backend=none,native_bf16 --minutes 0.05\nampcompare run",
    "backend=fp16 ": "backend=fp16 --steps 2 ",
    "precision.keep_fp32=fc": "model.name=tiny precision.keep_fp32=head",
}


def page(name: str) -> list[Block]:
    return read_blocks(f"docs/{name}.md")


@pytest.mark.parametrize("name", PAGES)
def test_the_python_of_a_page_is_in_files_that_are_valid(name: str):
    blocks = [block for block in page(name) if block.kind == "python"]
    for block in blocks:
        assert block.file_name, block.text
        ast.parse(block.text)


@pytest.mark.parametrize("name", PAGES)
def test_the_links_of_a_page_lead_somewhere(name: str):
    text = (ROOT / "docs" / f"{name}.md").read_text()
    for target, anchor in re.findall(r"\]\(((?!https?:)[^)#]*)#?([^)]*)\)", text):
        other = (ROOT / "docs" / target).resolve() if target else ROOT / "docs" / f"{name}.md"
        assert other.exists(), target
        if anchor:
            headings = re.findall(r"^#+ (.*)$", other.read_text(), re.M)
            anchors = {re.sub(r"[^\w\- ]", "", head.lower()).replace(" ", "-") for head in headings}
            assert anchor in anchors, f"{target}#{anchor}"
