"""docs/reports.md: every command works as it stands, and the worked example is computed again with SciPy."""

import csv
import json
import os
import re
import shlex
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats
from support.log_templates import write
from support.quick import ROOT

from ampcompare.cli import main

PAGE = (ROOT / "docs" / "reports.md").read_text()
RESULTS = ROOT / "docs" / "results" / "2026-11-26-h200"
BEFORE, _, AFTER = PAGE.partition("### Logs of your own loop")
EXAMPLES, _, AFTER = AFTER.partition("\n### ")
SECTIONS = dict(re.findall(r"^\*\*(\w[\w &]*)\*\*: (.*?)(?=^\*\*|\Z)", EXAMPLES, re.M | re.S))
FILES = {
    "CSV": "csv/{arm}/{run}.csv",
    "JSON lines": "jsonl/{arm}/{run}.jsonl",
}
# The commands outside the examples. A comment says what a command needs, or its exit code if it is not 0.
COMMANDS = re.findall(
    r"^(ampcompare .*?)(?: +# (.*))?$",
    "".join(re.findall(r"^```bash\n(.*?)^```", BEFORE + AFTER, re.M | re.S)),
    re.M,
)
ACCOUNT = "needs a W&B account"
ENVIRONMENT = os.environ | {"WANDB_SILENT": "true", "PYTHONPATH": str(ROOT / "src")}


def block(section: str, *kinds: str) -> str:
    """Return the code block of a section that has one of these kinds."""
    (found,) = re.findall(rf"^```(?:{'|'.join(kinds)})\n(.*?)^```", SECTIONS[section], re.M | re.S)
    return found


def make_logs(folder: Path, section: str) -> None:
    """Write the logs of an example: three runs of each arm, which differ in their last digit."""
    if section == "TensorBoard":
        pytest.importorskip("tensorboard")
        program = [sys.executable, "-c", block(section, "python")]
        subprocess.run(program, cwd=folder, env=ENVIRONMENT, check=True, capture_output=True)
        return
    for arm in ("fp32", "bf16"):
        for run in (1, 2, 3):
            text = re.sub(r"\d(?=\D*$)", str(run), block(section, "text"))
            write(folder / FILES[section].format(arm=arm, run=run), text)


def run_command(command: str) -> int:
    """Give a command of the page, without its charts, and return its exit code."""
    words = [os.path.expandvars(word) for word in shlex.split(command)[1:]]
    try:
        return main([*words, *([] if "--format" in words else ["--format", "md"])])
    except SystemExit as ended:
        return int(ended.code or 0)


@pytest.mark.slow
@pytest.mark.parametrize("section", [*FILES, "TensorBoard"])
def test_the_command_of_each_example_compares_its_logs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], section: str
):
    make_logs(tmp_path, section)
    monkeypatch.chdir(tmp_path)
    (line,) = block(section, "bash").splitlines()
    assert run_command(line) == 0
    printed = capsys.readouterr().out
    assert printed.count("3 of 3 runs") == 2
    assert "not compared" not in printed


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the repository's docs, and with the nine H200 runs where the commands look for runs."""
    folder = tmp_path_factory.mktemp("checkout")
    (folder / "docs").symlink_to(ROOT / "docs")
    with tarfile.open(RESULTS / "records.tar.xz") as archive:
        archive.extractall(folder / "records", filter="data")
    (folder / "runs").symlink_to(folder / "records" / "comparison")
    return folder


@pytest.mark.slow
@pytest.mark.parametrize(("command", "comment"), [c for c in COMMANDS if ACCOUNT not in c[1]])
def test_a_command_of_the_page_works(
    checkout: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    command: str,
    comment: str,
):
    monkeypatch.chdir(checkout)
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", "summary.md")
    expected = re.search(r"exit code (\d)", comment)
    assert run_command(command) == int(expected[1] if expected else 0)
    assert "native" in capsys.readouterr().out


def measured(backend: str, key: str) -> np.ndarray:
    """Return a value of the runs of a backend, ordered by seed, as the committed report has it."""
    report = json.loads((RESULTS / "comparison" / "comparison.json").read_text())
    runs = sorted((run for run in report["runs"] if run["group"] == backend), key=lambda run: run["seed"])
    assert [run["seed"] for run in runs] == [223, 224, 225]
    return np.array([run[key] for run in runs])


def committed_row() -> dict[str, str]:
    """Return the row of native in the committed CSV."""
    with (RESULTS / "comparison" / "comparison.csv").open() as file:
        return next(row for row in csv.DictReader(file) if row["group"] == "native")


def interval(values: np.ndarray, level: float) -> dict[str, float]:
    """Return mean, standard deviation, standard error, t quantile and ends, computed by SciPy alone."""
    error, quantile = stats.sem(values), stats.t.ppf((1 + level) / 2, len(values) - 1)
    low, high = stats.t.interval(level, len(values) - 1, values.mean(), error)
    found = {"mean": values.mean(), "deviation": values.std(ddof=1), "error": error, "quantile": quantile}
    return found | {"half": quantile * error, "low": low, "high": high}


LEVEL = 1 - 0.05 / (2 * 3)  # two groups, three looks


def test_the_ratio_of_the_worked_example_is_that_of_the_committed_table():
    native, none = measured("native", "images_per_second"), measured("none", "images_per_second")
    logs = np.log(native / none)
    found, row = interval(logs, LEVEL), committed_row()
    assert float(row["confidence"]) == pytest.approx(LEVEL)
    computed = [float(np.exp(found[key])) for key in ("mean", "low", "high")]
    assert computed == pytest.approx([float(row[f"speedup{end}"]) for end in ("", "_low", "_high")])
    for seed, a, b, ratio in zip((223, 224, 225), none, native, native / none, strict=True):
        assert f"| {seed} | {a:,.2f} | {b:,.2f} | {ratio:.5f} | {np.log(ratio):.6f} |" in PAGE
    mean, low, high = computed
    for text in (
        f"mean of the log ratios is {found['mean']:.6f}. Its exponential is the speed-up: {mean:.4f}x",
        f"log ratios is {found['deviation']:.6f}. Divided by √3, it is {found['error']:.6f}",
        f"99.17% is {found['quantile']:.3f}",
        f"= {found['half']:.6f}, so",
        f"{found['low']:.6f} to {found['high']:.6f}. The exponentials are {low:.4f} and {high:.4f}",
        f'"{low:.2f} to {high:.2f}"',
    ):
        assert text in PAGE


def test_the_difference_of_the_worked_example_is_that_of_the_committed_table():
    native, none = measured("native", "quality"), measured("none", "quality")
    found, row = interval(native - none, LEVEL), committed_row()
    assert [found[key] for key in ("mean", "low", "high")] == pytest.approx(
        [float(row[f"quality_difference{end}"]) for end in ("", "_low", "_high")]
    )
    for seed, a, b in zip((223, 224, 225), none, native, strict=True):
        assert f"| {seed} | {a:.2f}% | {b:.2f}% | {signed(b - a)} |" in PAGE
    assert (
        f"mean is {signed(found['mean'])} points, the standard deviation {found['deviation']:.3f}, "
        f"the standard error {found['error']:.3f}"
    ) in PAGE
    assert f"{found['mean']:.2f} ± {found['half']:.2f}: from {signed(found['low'])} to" in PAGE
    assert f"at most {-found['low']:.2f} lower" in PAGE


def test_the_numbers_of_seeds_on_the_page_have_the_power_that_it_says():
    """By SciPy's non-central t: one seed less decides fewer than 9 of 10 comparisons."""

    def power(n: int, deviation: float, k: int, sides: int) -> float:
        limit = stats.t.ppf(1 - 0.025 / k, n - 1)
        return 1 - sides * float(stats.nct.cdf(limit, n - 1, 0.5 * np.sqrt(n) / deviation))

    rows = re.findall(r"^\| (the same|not lower), (\d) groups? \| (.*) \|$", PAGE, re.M)
    assert len(rows) == 3
    for claim, k, cells in rows:
        sides = 2 if claim == "the same" else 1
        for deviation, n in zip((0.1, 0.2, 0.3, 0.4, 0.6, 1.0), map(int, cells.split(" | ")), strict=True):
            assert power(n, deviation, int(k), sides) >= 0.9
            assert n == 3 or power(n - 1, deviation, int(k), sides) < 0.9


def test_the_page_names_every_column_and_key_of_the_exports():
    described = {*re.findall(r"`([\w.\[\]]+)`", PAGE)}
    suffixes = re.compile(r"_(low|high|n|method|shown)$")
    columns = [suffixes.sub("", column) for column in committed_row()]
    assert not {column for column in columns if column not in described} - {"failure"}
    report: dict[str, Any] = json.loads((RESULTS / "comparison" / "comparison.json").read_text())
    assert not {*report} - described - {"version", "groups", "runs"}


def signed(value: float) -> str:
    """Return a value with its sign, as the page writes it."""
    return f"{value:+.2f}".replace("-", "−")
