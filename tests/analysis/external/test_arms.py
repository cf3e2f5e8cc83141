"""Arms: the name that a user gives to a source (`ampcompare report fp32=logs/a bf16=logs/b`)."""

from pathlib import Path

import pytest
from support.fakes import make

from ampcompare import analyse_runs, load_runs
from ampcompare.errors import UserError


@pytest.fixture
def logs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two folders with two runs each, as Lightning's CSVLogger leaves them: no precision, no seed."""
    monkeypatch.chdir(tmp_path)
    for arm, faster in (("a", 1.0), ("b", 2.0)):
        for version in (0, 1):
            folder = tmp_path / "logs" / arm / f"version_{version}"
            folder.mkdir(parents=True)
            rows = [f"{step},{1 / step},{100 * faster + version + step / 10}" for step in (10, 20, 30, 40)]
            text = "\n".join(["step,train_loss,samples_per_sec", *rows])
            (folder / "metrics.csv").write_text(f"{text}\n")
            (folder / "hparams.yaml").write_text("lr: 0.1\n")
    return tmp_path / "logs"


def test_named_sources_become_arms_and_the_first_is_the_baseline(logs: Path):
    analysis = analyse_runs(load_runs(["half=logs/b", f"full={logs / 'a'}"]), metric="train_loss:min")
    assert analysis.keys == ("arm",)
    assert {g.label: (g.n, g.seeds) for g in analysis.groups} == {"half": (2, 0), "full": (2, 0)}
    assert analysis.baseline_value == "half"
    asked = analyse_runs(load_runs(["half=logs/b", "full=logs/a"]), "full", metric="train_loss:min")
    assert asked.baseline_value == "full"
    with pytest.raises(UserError, match=r"--baseline 'ful': .*did you mean full\?"):
        analyse_runs(load_runs(["half=logs/b", "full=logs/a"]), "ful")


@pytest.mark.parametrize(
    ("sources", "message"),
    [
        (["fp32=logs/a", "logs/b"], "logs/b: has no name, but the other sources have (fp32)"),
        (["fp32=logs", "bf16=logs/b"], "this run is in both fp32 and bf16"),
        (["fp32=nowhere"], "nowhere"),
        (["fp32=", "logs/a", "bf16=logs/b"], "fp32=: a name without its source"),
        (["fp32", "=logs/a"], "=logs/a: a name without its source"),
        (["fp32=logs/a,bf16=logs/b"], "names several sources; separate them by spaces"),
    ],
)
def test_a_source_without_a_name_or_with_two_names_is_refused(logs: Path, sources, message):
    with pytest.raises(UserError) as caught:
        load_runs(sources)
    assert message in str(caught.value)
    assert len(caught.value.lines) == 1


def test_an_existing_folder_with_an_equals_sign_is_no_named_source(logs: Path):
    (logs / "a").rename(logs.parent / "lr=0.1")
    assert ["arm" in run.config for run in load_runs(["lr=0.1"])] == [False, False]


def test_own_runs_can_have_arms_whatever_their_backends():
    runs = [
        make(b, seed, config={"arm": arm})
        for arm, b in (("old", "none"), ("new", "native"))
        for seed in (1, 2)
    ]
    analysis = analyse_runs(runs)
    assert (analysis.keys, analysis.baseline_value) == (("arm",), "old")
    assert analysis.comparison("new").not_compared_reason == ""
    assert analyse_runs(runs, group_by=["backend"]).groups[0].value == "none"
