"""The caution about buffers that an overflow left non-finite names the run and the step."""

from __future__ import annotations

from typing import Any

from support.fakes import make

from ampcompare.report import analyse_runs

COUNT, AT = "amp/nonfinite_buffers", "amp/nonfinite_buffers_at_step"


def run(seed: int = 1, *, since: int | None = 50, at: Any = 42, said: Any = None, **options: Any):
    """A run with 4 such buffers in its rows from a step on, and at step `at` by its summary."""

    def spoil(plan: dict[str, Any]) -> None:
        for row in plan["rows"]:
            if "train/loss" in row:
                row[COUNT] = 4 if since is not None and row["global_step"] >= since else 0
        plan["summary"] |= {AT: at} | ({} if said is None else {COUNT: said})

    return make("native", seed, edit=spoil, **options)


def cautions(*runs: Any) -> list[str]:
    return [
        said for said in analyse_runs(runs).verdict.cautions if "overflowed" in said or "So it is" in said
    ]


def test_the_caution_names_the_run_and_the_step():
    (said,) = cautions(run(name="poor-one"), make("none"))
    assert said.startswith("A forward of poor-one overflowed at step 42 and left 4 buffers")
    assert "training.on_nonfinite_buffers=restore" in said


def test_a_run_that_was_killed_has_the_first_row_that_shows_it():
    (said,) = cautions(run(name="killed", at=None))
    assert "A forward of killed overflowed by step 50 and left 4 buffers" in said


def test_runs_of_one_name_are_told_apart_and_many_are_counted():
    said = cautions(*(run(seed, name="twin") for seed in range(9)))
    assert len(said) == 7
    assert len(set(said)) == 7
    assert said[-1] == "So it is in 3 more runs."


def test_where_they_were_put_back_or_stayed_finite_nothing_is_said():
    restored = run(config={"training": {"on_nonfinite_buffers": "restore"}})
    assert cautions(restored, run(2, since=None, at=None), make("none")) == []
