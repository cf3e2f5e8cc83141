"""A run that is killed and resumed is the run that was not: same weights, losses, loss scales, one record."""

from __future__ import annotations

import random
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from support import zygote
from support.quick import DROPOUT, QUICK
from support.same_run import assert_same_run, record_of, steps_of

# 8 steps an epoch, 16 in all; a scale that overflows at first and grows again; rows at 3, 6, 9, ...
WORDS = (
    *QUICK,
    "data.train_limit=64",
    "log.every=3",
    "diagnostics.every=4",
    "optimizer.momentum=0.9",
    "precision.growth_interval=3",
    "training.clip_norm=1",
    "checkpoint.every_epochs=1",
)
EVERY_ROW = "checkpoint.every_minutes=1e-9"
STORIES = [
    *((f"backend={name}",) for name in ("apex_o1", "bf16_sr")),
    ("backend=native", "training.accumulate=2", "data.train_limit=126", "optimizer.fused=true", DROPOUT),
    ("backend=apex_o2", "optimizer.name=adamw", "optimizer.momentum=0", "memory_format=channels_last"),
]


@dataclass
class Story:
    """One configuration: run whole, and in parts between kills."""

    words: tuple[str, ...]
    folder: Path
    said: list[str]

    @property
    def whole(self) -> Path:
        return self.folder / "whole"

    @property
    def parts(self) -> Path:
        return self.folder / "parts"


@pytest.fixture(scope="session")
def stories(
    tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> dict[tuple[str, ...], Story]:
    """Every configuration that a chosen test is about: killed in the first epoch with a checkpoint at each
    row, in the second with that of the epoch's end alone, and resumed to the end."""
    asking = [item for item in request.session.items if "stories" in item.fixturenames]  # type: ignore[attr-defined]
    chosen = {item.callspec.params["words"] for item in asking}  # type: ignore[attr-defined]
    found = {
        words: Story((*WORDS, *words), tmp_path_factory.mktemp("story"), [])
        for words in STORIES
        if words in chosen
    }
    told = list(found.values())

    def play(code: int, folder: str, *more: str, **job: Any) -> None:
        jobs = [
            {"words": (*story.words, f"output_dir={story.folder / folder}", *more), **job} for story in told
        ]
        for story, done in zip(told, zygote.run_all(jobs), strict=True):
            assert done["code"] == code, (story.words, done["said"])
            story.said.append(done["said"])

    play(0, "whole")
    play(-9, "parts", EVERY_ROW, kill_at=5)
    play(-9, "parts", "resume=auto", "checkpoint.every_minutes=null", kill_at=13)
    play(0, "parts", "resume=auto", EVERY_ROW)
    return found


@pytest.mark.slow
@pytest.mark.parametrize("words", STORIES, ids=" ".join)
def test_a_run_killed_twice_and_resumed_is_bit_identical(
    stories: dict[tuple[str, ...], Story], words: tuple[str, ...]
):
    story = stories[words]
    assert "at step 3" in story.said[2]
    assert "at step 8" in story.said[3]
    assert_same_run(story.whole, story.parts)
    record = record_of(story.parts)
    assert record.state == "finished"
    assert len(record.paths) == 3
    assert steps_of(story.parts) == [3, 6, 8, 9, 12, 15, 16]


@pytest.mark.slow
def test_a_run_killed_at_random_moments_ends_as_if_it_had_not_been(tmp_path: Path):
    """W&B's client dies with it each second time, as when the machine goes; alone it writes what it has."""
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    words = (
        *WORDS,
        "backend=native",
        "epochs=60",
        "checkpoint.every_minutes=0.002",
        "checkpoint.every_epochs=10",
    )
    assert zygote.run(*words, f"output_dir={whole}")["code"] == 0
    expected = steps_of(whole)
    dice = random.Random(7)
    kills = 0
    for _ in range(8):
        # Before it has a checkpoint a run that is killed is begun anew, as another one.
        saved = {} if kills else {"once_saved": str(parts)}
        job = {"kill_later": 0.05 + dice.random(), "pace": 0.01, "all": kills % 2 == 0} | saved
        done = zygote.run(*words, f"output_dir={parts}", "resume=auto", **job)
        if done["code"] != -9:
            assert done["code"] == 0, done
            break
        kills += 1
        so_far = steps_of(parts)
        assert so_far == expected[: len(so_far)]
        assert len(record_of(parts).paths) == kills
    else:
        assert zygote.run(*words, f"output_dir={parts}", "resume=auto")["code"] == 0
    assert kills >= 3
    assert_same_run(whole, parts)
