"""The fenced blocks of a documentation page: its files and its commands, run as a reader runs them.

A block whose first line is `# NAME.EXT` is a file. `bash` and `sh` blocks are commands. A command is not run
if it needs something that a test does not have; the page says so in a comment behind the command
(`# needs an NVIDIA GPU`) or in the paragraph before the block (`needs internet access`).
"""

import os
import re
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from support import warm_python
from support.quick import ROOT

BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.M | re.S)
FILE = re.compile(r"# ([\w.-]+\.\w+)\n")
NEEDS = re.compile(r"\bneeds (?:an NVIDIA GPU|a W&B account|internet access)\b", re.I)
SHELL = ("bash", "sh")


@dataclass(frozen=True)
class Block:
    """A fenced block of a page.

    Attributes:
        kind: The language, such as `bash`.
        text: What is between the fences.
        introduction: The paragraph before the block.
        section: The heading of the section, without the number signs.
    """

    kind: str
    text: str
    introduction: str
    section: str

    @property
    def file_name(self) -> str | None:
        """Return the name of the file that the block is, if its first line names it."""
        named = FILE.match(self.text)
        return named[1] if named and self.kind not in SHELL else None

    @property
    def commands(self) -> str:
        """Return the script without the commands that need what a test does not have."""
        if self.kind not in SHELL or NEEDS.search(self.introduction):
            return ""
        # A command that is continued by a backslash is one line.
        lines = self.text.replace("\\\n", " ").splitlines()
        return "\n".join(line for line in lines if line.strip() and not NEEDS.search(line))


def read_blocks(page: str) -> list[Block]:
    """Return the blocks of a page, given by its path in the checkout."""
    text = (ROOT / page).read_text()
    blocks = []
    for found in BLOCK.finditer(text):
        before = BLOCK.sub("", text[: found.start()])
        headings = re.findall(r"^#+ (.*)$", before, re.M)
        introduction = before.strip().rpartition("\n\n")[2]
        blocks.append(Block(found[1], found[2], introduction, headings[-1] if headings else ""))
    return blocks


def write_files(blocks: list[Block], folder: Path, replace: Mapping[str, str] | None = None) -> None:
    """Write the files of a page into the folder."""
    for block in blocks:
        if block.file_name:
            (folder / block.file_name).write_text(_replaced(block.text, replace or {}))


def run_commands(script: str, folder: Path, replace: Mapping[str, str] | None = None) -> str:
    """Run a script in the folder with this environment's `python` and `ampcompare`; return its output."""
    programs = warm_python.programs()
    own = {"PATH": f"{programs}{os.pathsep}{os.environ['PATH']}", "OMP_NUM_THREADS": "1", "COLUMNS": "200"}
    env = os.environ | own | {"PYTHONPATH": str(ROOT / "src"), "WANDB_MODE": "offline"}
    command = ["bash", "-ec", _replaced(script, replace or {})]
    done = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, check=False)
    assert not done.returncode, f"{script}\n{done.stdout[-2000:]}{done.stderr[-2000:]}"
    return done.stdout


def _replaced(text: str, replace: Mapping[str, str]) -> str:
    for old, new in replace.items():
        text = text.replace(old, new)
    return text
