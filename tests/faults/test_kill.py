"""A run that is killed and resumed is the run that was not: same weights, losses, loss scales, one record."""

import random
from pathlib import Path
from typing import Any

import pytest
from support import faults
from support.quick import DROPOUT, QUICK
from support.same_run import assert_same_run, record_of, steps_of

# 8 steps an epoch, 16 in all; a scale that overflows at first and grows again; rows at 3, 6, 9, ...
WORDS = (
    *QUICK,
    "data.train_limit=64",
    "log.every=3",
    "diagnostics.every=4",
    "recipe=reference",
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


@pytest.mark.slow
def test_runs_killed_twice_and_resumed_are_bit_identical(tmp_path: Path, subtests: pytest.Subtests):
    """All runs are killed twice at the same time, and resumed to the end.

    The first kill is in the first epoch, with a checkpoint at each row. The second is in the second epoch,
    with a checkpoint only at the end of an epoch.
    """
    folders = {words: tmp_path / str(number) for number, words in enumerate(STORIES)}

    def play(code: int, part: str, *more: str, **job: Any) -> list[str]:
        jobs = [
            {"words": (*WORDS, *words, f"output_dir={folder / part}", *more), **job}
            for words, folder in folders.items()
        ]
        done = faults.run_all(jobs)
        assert {each["code"] for each in done} == {code}, done
        return [each["said"] for each in done]

    play(0, "whole")
    play(-9, "parts", EVERY_ROW, kill_at=5)
    second = play(-9, "parts", "resume=auto", "checkpoint.every_minutes=null", kill_at=13)
    third = play(0, "parts", "resume=auto", EVERY_ROW)
    for words, folder, said, then in zip(folders, folders.values(), second, third, strict=True):
        with subtests.test(words=words):
            assert "at step 3" in said
            assert "at step 8" in then
            assert_same_run(folder / "whole", folder / "parts")
            record = record_of(folder / "parts")
            assert (record.state, len(record.paths)) == ("finished", 3)
            assert steps_of(folder / "parts") == [3, 6, 8, 9, 12, 15, 16]


@pytest.mark.slow
def test_a_run_killed_at_random_moments_ends_as_if_it_had_not_been(tmp_path: Path):
    """W&B's client dies with it each second time, as when the machine goes; alone it writes what it has."""
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    words = (
        *WORDS,
        "backend=native",
        "epochs=40",
        "checkpoint.every_minutes=0.002",
        "checkpoint.every_epochs=10",
    )
    assert faults.run(*words, f"output_dir={whole}")["code"] == 0
    expected = steps_of(whole)
    dice = random.Random(7)
    kills = 0
    for _ in range(5):
        # Before it has a checkpoint a run that is killed is begun anew, as another one.
        saved = {} if kills else {"once_saved": str(parts)}
        job = {"kill_later": 0.05 + dice.random(), "pace": 0.01, "all": kills % 2 == 0} | saved
        done = faults.run(*words, f"output_dir={parts}", "resume=auto", **job)
        if done["code"] != -9:
            assert done["code"] == 0, done
            break
        kills += 1
        so_far = steps_of(parts)
        assert so_far == expected[: len(so_far)]
        assert len(record_of(parts).paths) == kills
    else:
        assert faults.run(*words, f"output_dir={parts}", "resume=auto")["code"] == 0
    assert kills >= 3
    assert_same_run(whole, parts)
