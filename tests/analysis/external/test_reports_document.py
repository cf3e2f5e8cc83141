"""The examples of docs/reports.md, one per format: what is logged, and the command as it stands."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from support.quick import ROOT

PAGE = (ROOT / "docs" / "reports.md").read_text().partition("### One example per format")[2]
PAGE = PAGE.partition("\n## ")[0]
SECTIONS = dict(re.findall(r"^\*\*(\w[\w &]*)\*\*: (.*?)(?=^\*\*|\Z)", PAGE, re.M | re.S))
FILES = {
    "CSV": ("csv/{arm}/{run}.csv", "bf16"),
    "JSON lines": ("jsonl/{arm}/{run}.jsonl", "bf16"),
    "Hugging Face": ("hf/{arm}/{run}/trainer_state.json", "fp16"),
    "Lightning": ("lightning_logs/{arm}/version_{run}/metrics.csv", "bf16"),
    "timm": ("timm/{arm}/{run}/summary.csv", "amp"),
}
PROGRAMS = ("TensorBoard", "W&B")


def block(section: str, *kinds: str) -> str:
    """Return the code block of a section that has one of these kinds."""
    (found,) = re.findall(rf"^```(?:{'|'.join(kinds)})\n(.*?)^```", SECTIONS[section], re.M | re.S)
    return found


def test_every_format_has_an_example():
    assert SECTIONS.keys() == {*FILES, *PROGRAMS}


@pytest.mark.slow
@pytest.mark.parametrize("section", [*FILES, *PROGRAMS])
def test_the_command_of_each_example_compares_its_logs(tmp_path: Path, section: str):
    environment = os.environ | {"WANDB_SILENT": "true", "PYTHONPATH": str(ROOT / "src")}
    if section in PROGRAMS:
        if section == "TensorBoard":
            pytest.importorskip("tensorboard")
        program = [sys.executable, "-c", block(section, "python")]
        subprocess.run(program, cwd=tmp_path, env=environment, check=True, capture_output=True)
    else:
        place, other = FILES[section]
        for arm in ("fp32", other):
            for run in (1, 2, 3):
                path = tmp_path / place.format(arm=arm, run=run)
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(block(section, "text", "json"))
    (line,) = block(section, "bash").splitlines()
    arguments = line.split()
    assert arguments[0] == "ampcompare"
    command = [sys.executable, "-m", *arguments, "--format", "md"]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("3 of 3 runs") == 2
    assert "not compared" not in done.stdout
