"""docs/architecture.md tells through which files a step and its row go: a real step does."""

import re
import sys
from pathlib import Path
from types import FrameType
from typing import Any

from support.quick import ROOT

from ampcompare import experiment
from ampcompare.config.load import load_config

PACKAGE = ROOT / "src" / "ampcompare"
STEP = 4  # the step that is followed, with a row after it


def read_walk() -> list[tuple[str, list[str]]]:
    """Return the first file and the functions of each line of the page's table."""
    text = (ROOT / "docs" / "architecture.md").read_text()
    table = re.search(r"\| file \| what it does \| functions \|\n.*?\n((?: *\|.*\n)+)", text)
    assert table is not None
    rows = [line.strip(" |").split(" | ") for line in table[1].splitlines()]
    return [(re.findall("`(.+?)`", file)[0], re.findall("`(.+?)`", names)) for file, _, names in rows]


def follow_step(folder: Path) -> list[tuple[str, str]]:
    """Return the functions that a step with clipping and its row call, as (file, function), in order."""
    calls: list[tuple[str, str]] = []

    def note(frame: FrameType, event: str, argument: Any) -> None:
        code = frame.f_code
        if event == "call" and Path(code.co_filename).is_relative_to(PACKAGE):
            calls.append((str(Path(code.co_filename).relative_to(PACKAGE)), code.co_qualname))

    def on_step(step: int) -> None:
        sys.setprofile(note if step == STEP - 1 else None)

    words = "backend=native model.name=tiny epochs=1 batch_size=8 data.source=synthetic data.train_limit=40 "
    words += (
        f"data.test_limit=8 log.every={STEP} training.clip_norm=1 wandb.mode=disabled output_dir={folder}"
    )
    try:
        experiment.run(load_config(None, words.split()), on_step=on_step)
    finally:
        sys.setprofile(None)
    return calls


def test_a_step_goes_through_the_files_and_functions_that_the_page_names(tmp_path: Path):
    walk = read_walk()
    assert len(walk) == 5
    calls = follow_step(tmp_path)
    for file, names in walk[1:]:  # the loop itself is within its call already
        called = [name for called_file, name in calls if called_file == file]
        positions = [called.index(name) for name in names]
        assert positions == sorted(positions), file
    files = [next(i for i, call in enumerate(calls) if call[0] == file) for file, _ in walk[1:]]
    assert files == sorted(files)
    loop_file, loop_names = walk[0]
    assert [
        name
        for name in loop_names
        if f"def {name.partition('.')[2]}(" not in (PACKAGE / loop_file).read_text()
    ] == []
