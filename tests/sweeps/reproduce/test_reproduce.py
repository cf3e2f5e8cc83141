"""`ampcompare reproduce`: what is published is listed, run as it was, and judged."""

import re
from pathlib import Path

import pytest
from rich.console import Console
from support.fakes import plan
from support.publication_files import throughput, write_publication
from support.wandb_files import write_runs

from ampcompare import analyse_runs, load_runs
from ampcompare.analysis.reproduction import OPEN
from ampcompare.cli import main
from ampcompare.config.load import config_from_cli
from ampcompare.config.publication_config import arm_config
from ampcompare.entrypoint import main as train
from ampcompare.publications.publication import list_publications, load_publication
from ampcompare.report.page.render import render_page
from ampcompare.sweeps.command_macros import build_command
from ampcompare.sweeps.prepare import prepare_sweep
from ampcompare.sweeps.sweep_file import Sweep, read_sweep
from ampcompare.sweeps.sweep_report import report

SMALL = ("device=cpu", "wandb.mode=offline", "max_steps=6", "log.every=2", "log.warmup_steps=1")
SMALL += ("data.train_limit=64", "data.test_limit=32", "batch_size=8", "diagnostics.every=null")
LOOK = ("published.scale=0.02", "published.network=tiny")


def run(*words: object, capsys: pytest.CaptureFixture[str]) -> tuple[int, str]:
    with pytest.raises(SystemExit) as end:
        main(["reproduce", *map(str, words)])
    output = capsys.readouterr()
    return int(end.value.code or 0), output.out + output.err


TIMES = {
    "ignite": "50 min on Turing GPU, as published; about 10 min on an H100",
    "kuangliu": "about 2.4 h on an H100",
    "recipe": "34 s on NVIDIA GeForce RTX 2060, as published; about 5 s on an H100",
}


def test_the_list_names_every_publication_with_its_arms_data_source_and_time(capsys):
    """Check the times, too.

    For an H100: the counted work of all arms in fp32 at 40% of its peak. For the publication's machine: from
    its seconds per run or epoch, or its images/s.
    """
    status, output = run(capsys=capsys)
    assert status == 0
    blocks = dict(block.split(": ", 1) for block in output.split("\n\n")[:-1])
    assert sorted(blocks) == list_publications()
    for name, block in blocks.items():
        publication = load_publication(name)
        assert publication.title in block
        assert publication.source in block
        assert all(arm in block for arm in publication.arms)
    assert {name: blocks[name].rpartition("time:   ")[2] for name in TIMES} == TIMES
    assert "1.7 h on Turing GPU, as published" in run("--seeds", "6", capsys=capsys)[1]


PAPER = """
title: A paper
source: Somebody
setting: {data: {source: cifar10}, epochs: 10}
baseline: fp32
arms: {half: {backend: native}, fp32: {backend: none}}
"""


@pytest.fixture
def paper(tmp_path: Path) -> Path:
    path = tmp_path / "paper.yaml"
    path.write_text(PAPER)
    return path


def test_wrong_use_is_one_line_and_starts_nothing(paper, capsys, monkeypatch, subtests: pytest.Subtests):
    for words, expected in [
        (("ignit",), "'ignit': no such publication; did you mean ignite?"),
        (("{paper}", "epoch=1"), "epoch: no such key; did you mean epochs?"),
        (("{paper}", "seed=[1,x]"), "parameters.seed='x': expected"),
        (("{paper}", "--out", "a", "output_dir=b"), "--out a: output_dir=b also names the folder"),
        (("--scale", "0.5"), "--scale 0.5: needs the name of a publication; ampcompare reproduce lists them"),
        (("{paper}", "epochs=1", "--runs", "a"), "epochs=1: --runs compares runs that exist"),
        (("{paper}", "--write-sweep", "{paper}"), "File exists; name a new file"),
        (("{paper}", "--write-sweep", "new", "--out", "a"), "--out a: --write-sweep only writes a file"),
    ]:
        with subtests.test(words=words, expected=expected):
            monkeypatch.chdir(paper.parent)
            status, output = run(*(word.format(paper=paper) for word in words), capsys=capsys)
            assert status == 2
            assert re.fullmatch(r"error: [^\n]+\n", output), output
            assert expected in output
            assert not [*paper.parent.glob("**/wandb/*")]


@pytest.mark.slow
def test_every_arm_trains_at_a_small_scale_on_a_cpu_up_to_the_page(tmp_path, monkeypatch):
    """No figure of it is judged, and title and section say why."""
    name = "recipe"
    monkeypatch.setenv("WANDB_MODE", "offline")
    own, runs = load_publication(name), tmp_path / "runs"
    for number, arm in enumerate(own.arms):
        words = [f"published.name={name}", f"published.arm={arm}", *LOOK, f"output_dir={runs / str(number)}"]
        assert train([*words, "data.kwargs.count=128", *SMALL]) == 0
        (record,) = load_runs([str(runs / str(number))])
        assert (record.option("published.name"), record.option("published.arm")) == (name, arm)
        whole = arm_config(own, arm)
        for key in ("backend", "tf32", "precision.loss_scale", "memory_format", "optimizer.lr"):
            assert record.option(key) == whole.value(key)
    analysis = analyse_runs(load_runs([str(runs)]), reproduce=name)
    assert [*analysis.reproduction.match.arms] == [*own.arms]
    assert {row.verdict for row in analysis.reproduction.rows} <= {OPEN}
    page = render_page(analysis).decode()
    assert f"{name} at scale 0.02 with the network tiny</title>" in page
    assert page.count("at scale 0.02 with the network tiny") >= 2


@pytest.mark.slow
@pytest.mark.parametrize(("factor", "status"), [(1.0, 0), (1.3, 3)])
def test_exit_code_3_says_that_a_figure_is_not_reproduced(tmp_path, monkeypatch, capsys, factor, status):
    """Of runs that exist, and at the end of a sweep that made them."""
    monkeypatch.chdir(tmp_path)
    write_runs(Path("runs"), [plan(backend, seed) for backend in ("none", "native") for seed in (1, 2, 3)])
    paper = write_publication(tmp_path, {"speed": throughput(factor)})
    assert run(paper, "--runs", "runs", "--out", "judged", capsys=capsys)[0] == status
    assert run(paper, "--write-sweep", "sweep.yaml", capsys=capsys)[0] == 0
    assert report(Console(quiet=True), read_sweep(Path("sweep.yaml")), tmp_path / "runs") == status
    sentence = "speed-up in throughput of amp: not reproduced"
    assert capsys.readouterr().err.count(sentence) == (status == 3)


def read(path: Path) -> Sweep:
    return prepare_sweep(read_sweep(path), ()).sweep


def written(tmp_path: Path, name: str, *options: str) -> Path:
    path = tmp_path / "written.yaml"
    path.unlink(missing_ok=True)
    with pytest.raises(SystemExit) as end:
        main(["reproduce", name, "--write-sweep", str(path), *options])
    assert not end.value.code
    return path


def test_a_written_sweep_is_read_back_and_holds_every_arm_in_every_seed(tmp_path):
    paper = tmp_path / "my paper: 2.yaml"
    arms = "arms: {half: {backend: native}, fp32: {}, bf16: {backend: native_bf16}}"
    paper.write_text(f"title: A\nsource: B\nbaseline: fp32\nsetting: {{seed: 7}}\n{arms}\n")
    sweep = read(written(tmp_path, str(paper), "--seeds", "2"))
    of = {p.key: p.settings.get("values") for p in sweep.parameters}
    assert (of["published.arm"], of["seed"]) == (["fp32", "half", "bf16"], [7, 8])  # the baseline is first
    assert sweep.name == "reproduce-my-paper-2"  # which a folder can be called
    path = written(tmp_path, "recipe", "--seeds", "2", "--scale", "0.5", "log.every=7")
    sweep, publication = read(path), load_publication("recipe")
    assert sweep.total() == 2 * len(publication.arms)
    template = sweep.command[sweep.command.index("run") + 1 :]
    configs = [
        config_from_cli(
            build_command(template, sweep.program, sweep.points[project].parameters, tmp_path / "json")
        )
        for project in range(2 * len(publication.arms))
    ]
    ran = sorted((config.published.arm, config.seed) for config in configs)
    assert [arm for arm, _ in ran] == sorted([*publication.arms] * 2)
    assert {config.published.scale for config in configs} == {0.5}
    assert {config.log.every for config in configs} == {7}
