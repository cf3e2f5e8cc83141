"""`ampcompare reproduce`: what is published is listed, run as it was, and judged."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from rich.console import Console
from support.quick import ROOT

from ampcompare.cli import main
from ampcompare.config.publication import arm_config
from ampcompare.entrypoint import main as train
from ampcompare.published.publication import load, names
from ampcompare.records import load_runs
from ampcompare.report import analyse_runs
from ampcompare.report.analysis.judged import OPEN
from ampcompare.report.page.render import render_page
from ampcompare.reproduce.as_sweep import Repetition
from ampcompare.reproduce.listing import forecast, in_words, lines, seconds_there
from ampcompare.sweeps.answer import report
from ampcompare.sweeps.file import read_sweep

SMALL = ("device=cpu", "wandb.mode=offline", "max_steps=6", "log.every=2", "log.warmup_steps=1")
SMALL += ("data.train_limit=64", "data.test_limit=32", "batch_size=8", "diagnostics.every=null")
IMAGES = ("--scale", "0.02", "--network", "tiny", "data.source=synthetic")
# What makes seconds on a CPU of a publication's data: the others' images are those of CIFAR.
OF = {
    "dle": ("data.kwargs.size=64",),
    "dle-v100": ("data.kwargs.size=64",),
    "recipe": ("data.kwargs.count=128",),
}
LOOK = ("published.scale=0.02", "published.network=tiny")


def run(*words: object, capsys: pytest.CaptureFixture[str]) -> tuple[int, str]:
    with pytest.raises(SystemExit) as end:
        main(["reproduce", *map(str, words)])
    said = capsys.readouterr()
    return int(end.value.code or 0), said.out + said.err


def start(*words: object) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "ampcompare.cli", "reproduce", *map(str, words)]
    env = {k: v for k, v in os.environ.items() if not k.startswith("WANDB_")}
    env |= {"PYTHONPATH": str(ROOT / "src")}
    return subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def test_the_list_names_every_publication_with_its_arms_data_source_and_time(capsys):
    status, said = run(capsys=capsys)
    assert status == 0
    blocks = dict(block.split(": ", 1) for block in said.split("\n\n")[:-1])
    assert sorted(blocks) == names()
    for name, block in blocks.items():
        publication = load(name)
        assert publication.title in block
        assert publication.source in block
        assert all(arm in block for arm in publication.arms)
        assert re.search(r"^  time:   .*\d (h|min|s) on (an H100|.*, by their figures)", block, re.M)
    assert "Times are of 3 seeds of every arm" in said


def test_the_list_loads_no_torch():
    code = (
        "import sys; from ampcompare.cli import main\n"
        "try: main(['reproduce'])\n"
        "except SystemExit as end: print(end.code, sorted({'torch', 'torchvision', 'wandb', 'optuna'} & "
        "set(sys.modules)))"
    )
    env = os.environ | {"PYTHONPATH": str(ROOT / "src")}
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "0 []"


PAPER = """
title: A paper
source: Somebody
hardware: Tesla V100-SXM2
setting: {data: {source: cifar10}, epochs: 10}
images: 50000
baseline: fp32
arms: {half: {backend: native}, fp32: {backend: none}}
figures: {}
gflop: 6.69
"""


@pytest.fixture
def paper(tmp_path: Path) -> Path:
    path = tmp_path / "paper.yaml"
    path.write_text(PAPER)
    return path


def test_the_forecast_is_counted_work_over_two_fifths_of_an_h100(paper):
    """6.69 GFLOP an image, 50,000 images, 10 epochs, 2 arms, at 26.76 TFLOP/s."""
    assert forecast(load(str(paper))) == pytest.approx(6.69e9 * 50_000 * 10 * 2 / 26.76e12)
    paper.write_text(PAPER.replace("gflop: 6.69", ""))
    assert forecast(load(str(paper))) is None


@pytest.mark.parametrize(
    ("measured", "values", "seconds"),
    [
        ("seconds", "{half: 30, fp32: 50}", 80),
        ("seconds_per_epoch", "{half: 3, fp32: 5}", 80),
        ("images_per_second", "{half: 5000, fp32: 2500}", 300),
        ("final_accuracy", "{half: 90, fp32: 91}", None),
        ("seconds", "{fp32: 50}", None),
    ],
)
def test_where_times_were_published_the_list_has_them(paper, measured, values, seconds):
    figures = f"figures: {{it: {{measured: {measured}, values: {values}}}}}"
    paper.write_text(PAPER.replace("figures: {}", figures))
    assert seconds_there(load(str(paper))) == seconds


def test_times_are_told_in_two_digits():
    assert [in_words(s) for s in (0.2, 50, 700, 12_345, 1e6)] == ["0.2 s", "50 s", "12 min", "3.4 h", "280 h"]


def test_a_broken_file_among_them_is_a_line_of_the_list(monkeypatch):
    monkeypatch.setattr("ampcompare.reproduce.listing.names", lambda: ["nobody", "tootouch"])
    told = [*lines(3)]
    assert "nobody: 'nobody': no such publication" in told[0]
    assert "tootouch: fp32 against torch.amp" in told[2]


def test_wrong_use_is_one_line_and_starts_nothing(paper, capsys, monkeypatch, subtests: pytest.Subtests):
    for words, said in [
        (("nobody",), "'nobody': no such publication; expected a file or one of apex-478, dle"),
        (("ignit",), "did you mean ignite?"),
        (("{paper}", "--scale", "2"), "--scale 2: expected a number above 0 and at most 1"),
        (("{paper}", "--scale", "0"), "--scale 0: expected a number above 0 and at most 1"),
        (("{paper}", "--network", "big"), "published.network='big': expected one of tiny"),
        (("{paper}", "--seeds", "0"), "see ampcompare reproduce --help"),
        (("{paper}", "epoch=1"), "epoch: no such key; did you mean epochs?"),
        (("{paper}", "seed=[1,x]"), "parameters.seed: seed='x': expected"),
        (("{paper}", "--out", "a", "output_dir=b"), "--out a: output_dir=b says it too; leave one out"),
        (("{paper}", "--out", "{paper}"), "paper.yaml"),
        (("--scale", "0.5"), "--scale 0.5: of which publication? give its name"),
        (
            ("{paper}", "--runs", "a", "--seeds", "2"),
            "--seeds 2: --runs judges runs that exist; leave it out",
        ),
        (("{paper}", "epochs=1", "--runs", "a"), "epochs=1: --runs judges runs that exist; leave it out"),
        (("{paper}", "--runs", "absent"), "absent: no such folder"),
        (("{paper}", "--write-sweep", "{paper}"), "there is such a file; name another, or remove it"),
        (
            ("{paper}", "--write-sweep", "new", "--out", "a"),
            "--out a: --write-sweep runs nothing; leave it out",
        ),
        (("{paper}", "--write-sweep", "no/where/new"), "--write-sweep no/where/new: "),
    ]:
        with subtests.test(words=words, said=said):
            monkeypatch.chdir(paper.parent)
            status, told = run(*(word.format(paper=paper) for word in words), capsys=capsys)
            assert status == 2
            assert re.fullmatch(r"error: [^\n]+\n", told), told
            assert said in told
            assert not [*paper.parent.glob("**/wandb/*")]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["tootouch", "dle", "recipe"])  # images of CIFAR, of ImageNet's size, none
def test_every_arm_trains_at_a_small_scale_on_a_cpu_up_to_the_page(tmp_path, monkeypatch, name):
    """No figure of it is judged, and title and section say why."""
    monkeypatch.setenv("WANDB_MODE", "offline")
    own, runs = load(name), tmp_path / "runs"
    for number, arm in enumerate(own.arms):
        words = [f"published.name={name}", f"published.arm={arm}", *LOOK, f"output_dir={runs / str(number)}"]
        assert train([*words, *OF.get(name, ["data.source=synthetic"]), *SMALL]) == 0
        (record,) = load_runs([str(runs / str(number))])
        assert (record.option("published.name"), record.option("published.arm")) == (name, arm)
        whole = arm_config(own, arm)
        for key in ("backend", "tf32", "precision.loss_scale", "memory_format", "optimizer.lr"):
            assert record.option(key) == whole.value(key)
    analysis = analyse_runs(load_runs([str(runs)]), reproduce=name)
    assert [*analysis.published.matched.arms] == [*own.arms]
    assert {row.verdict for row in analysis.published.rows} <= {OPEN}
    page = render_page(analysis).decode()
    assert f"{name} at scale 0.02 with the network tiny</title>" in page
    assert page.count("at scale 0.02 with the network tiny") >= 2


@pytest.mark.slow
def test_a_publication_is_run_interrupted_and_gone_on_with_to_its_report(tmp_path, capsys):
    """And the same runs are judged by themselves."""
    words = ("tootouch", *IMAGES, *SMALL, "--out", tmp_path / "runs", "--seeds", "1")
    first = start(*words)
    assert first.stdout is not None
    said = ""
    while "run 1 started" not in said:
        line = first.stdout.readline()
        assert line, said
        said += line
    first.send_signal(signal.SIGINT)
    said += first.communicate()[0]
    assert first.returncode == 130, said
    assert "go on with: " in said
    before = {path.name for path in (tmp_path / "runs" / "wandb").glob("offline-run-*")}

    again = start(*words)
    said = again.communicate()[0]
    assert again.returncode == 0, said
    assert re.search(r"[12] of them done before", said)
    records = load_runs([str(tmp_path / "runs")])
    assert sorted(r.option("published.arm") for r in records) == sorted(load("tootouch").arms)
    assert {r.option("seed") for r in records} == {223}
    assert {r.option("model.name") for r in records} == {"tiny"}
    assert before <= {path.name for path in (tmp_path / "runs" / "wandb").glob("offline-run-*")}
    assert (tmp_path / "runs" / "report" / "index.html").is_file()

    status, told = run("tootouch", "--runs", tmp_path / "runs", "--out", tmp_path / "page", capsys=capsys)
    assert status == 0, told
    assert (tmp_path / "page" / "index.html").is_file()


TWICE = """
title: Twice the same
source: Somebody
setting: {model: {name: tiny}, data: {source: synthetic, train_limit: 128, test_limit: 400}, epochs: 1}
baseline: once
arms: {once: {backend: none}, again: {backend: none, tf32: true}}
figures:
  accuracy:
    measured: final_accuracy
    values:
      once: {value: 50, low: 0, high: 100, n: 3}
      again: {value: 50, low: 0, high: 100, n: 3}
"""


@pytest.fixture(scope="module")
def twice(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Runs of two arms that train the same on a CPU, in three seeds, and their publication's file."""
    folder = tmp_path_factory.mktemp("twice")
    (folder / "paper.yaml").write_text(TWICE)
    for arm, seed in ((arm, seed) for seed in (1, 2, 3) for arm in ("once", "again")):
        words = [f"published.name={folder / 'paper.yaml'}", f"published.arm={arm}", f"seed={seed}"]
        words += ["device=cpu", "wandb.mode=offline", "log.every=2", "diagnostics.every=null"]
        assert train([*words, f"output_dir={folder / 'runs'}"]) == 0
    return folder


@pytest.mark.slow
@pytest.mark.parametrize(("printed", "status"), [(50, 0), (5000, 3)])
def test_exit_code_3_says_that_a_figure_is_not_reproduced(twice, tmp_path, monkeypatch, printed, status):
    """Of runs that exist, and at the end of the sweep that made them."""
    monkeypatch.chdir(tmp_path)
    again = f"again: {{value: {printed}, low: {printed - 50}, high: {printed + 50}"
    (tmp_path / "paper.yaml").write_text(TWICE.replace("again: {value: 50, low: 0, high: 100", again))
    with pytest.raises(SystemExit) as end:
        main(["reproduce", "paper.yaml", "--runs", str(twice / "runs")])
    assert (end.value.code or 0) == status
    sweep = tmp_path / "sweep.yaml"
    sweep.write_text(Repetition("paper.yaml").text())
    (tmp_path / "runs").symlink_to(twice / "runs")
    assert report(Console(quiet=True), read_sweep(sweep), tmp_path / "runs") == status
