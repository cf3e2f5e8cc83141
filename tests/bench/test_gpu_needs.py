"""What a part of the GPU check lacks is said before it runs. Rehearsed with packages that refuse their
import.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from support.quick import ROOT

sys.path.insert(0, str(ROOT / "benchmarks"))

import gpu_check
from gpu import needs

REFUSE = """
import sys

class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {names!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, Refuse())
"""
ABSENT = ("wandb", "omegaconf", "altair", "vl_convert", "optuna", "wandb_workspaces", "sqlalchemy", "alembic")


@pytest.fixture
def refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> dict[str, str]:
    """The environment of programs for which these packages are not installed."""
    (tmp_path / "hook").mkdir()
    (tmp_path / "hook" / "sitecustomize.py").write_text(REFUSE.format(names=set(ABSENT)))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "hook"))
    return needs.environment()


@pytest.fixture
def bare(refused: dict[str, str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    """gpu_check as on a machine with a GPU and without these packages, wheels or images."""
    import torch

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(needs, "WHEELS", tmp_path / "no-wheels")
    return tmp_path / "out"


def make_wheel(folder: Path, name: str, requires: str = "") -> Path:
    """A wheel of one module that says its own name."""
    folder.mkdir(exist_ok=True)
    path, info = folder / f"{name}-1.0-py3-none-any.whl", f"{name}-1.0.dist-info"
    with zipfile.ZipFile(path, "w") as wheel:
        wheel.writestr(f"{name}.py", f"NAME = {name!r}\n")
        lines = [f"Requires-Dist: {requires}"] if requires else []
        wheel.writestr(
            f"{info}/METADATA", "\n".join(["Metadata-Version: 2.1", f"Name: {name}", "Version: 1.0", *lines])
        )
        wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr(f"{info}/RECORD", f"{name}.py,,\n{info}/METADATA,,\n{info}/WHEEL,,\n{info}/RECORD,,\n")
    return path


def test_a_part_that_lacks_something_is_said_and_skipped(bare: Path, capsys: pytest.CaptureFixture[str]):
    words = ["--out", str(bare), "--data", "synthetic", "--only", "t"]  # as good as all
    assert gpu_check.main([*words, "--minutes", "0"]) == 1
    printed = capsys.readouterr().out
    assert "train-tootouch-native: lacks wandb, omegaconf\n" in printed
    assert "comparison-report: lacks altair, vl-convert-python\n" in printed
    assert "throughput-compared: lacks omegaconf\n" in printed
    assert "tests: lacks omegaconf\n" in printed
    assert "| train-comparison-223-none | lacks wandb, omegaconf |" in (bare / "summary.md").read_text()
    assert not list(bare.glob("*.log"))
    assert gpu_check.main([*words[:-1], "recipe"]) == 1
    assert "recipe: lacks omegaconf\n" in capsys.readouterr().out


def test_the_list_shows_what_is_lacking_and_makes_nothing(bare: Path, capsys: pytest.CaptureFixture[str]):
    assert gpu_check.main(["--out", str(bare), "--data", str(bare / "none.tar"), "--list"]) == 0
    lines = {line.partition(":")[0]: line for line in capsys.readouterr().out.splitlines()}
    assert lines["recipe"].endswith("[lacks omegaconf]")
    assert lines["images"].endswith(f"[lacks images ({bare / 'none.tar'}: no such file or folder)]")
    assert "[lacks wandb, omegaconf, images (" in lines["train-100-epochs-native"]
    assert lines["throughput-compared"].endswith("[lacks omegaconf]")
    assert not bare.exists()


def test_a_part_that_passed_stays_so_and_one_that_lacked_something_is_to_do_when_it_is_there(
    bare: Path, monkeypatch: pytest.MonkeyPatch
):
    words = ["--out", str(bare), "--data", "synthetic", "--only", "recipe", "--minutes", "0"]
    gpu_check.main(words)
    assert gpu_check.runner.read_state("recipe", bare)["state"] == "lacks omegaconf"
    monkeypatch.delenv("PYTHONPATH")
    gpu_check.main(words)
    assert gpu_check.runner.read_state("recipe", bare)["state"] == "to do"
    gpu_check.runner.write_state("recipe", bare, "passed")
    monkeypatch.setenv("PYTHONPATH", str(bare.parent / "hook"))
    gpu_check.main(words)
    assert gpu_check.runner.read_state("recipe", bare)["state"] == "passed"


def test_what_a_package_requires_is_lacking_with_it(tmp_path: Path):
    wheel = make_wheel(tmp_path / "wheels", "thing", "absent-thing>=2; python_version>='3'")
    env = needs.environment(wheel)
    found = needs.lacks(["thing", "never-heard-of", "pytest"], env)
    assert found == {"never-heard-of": "never-heard-of", "thing": "absent-thing (for thing)"}
    other = make_wheel(tmp_path / "wheels", "absent_thing")
    assert needs.lacks(["thing"], needs.environment(wheel, other)) == {}


def test_wheels_are_installed_once_and_found_by_the_parts(tmp_path: Path):
    wheels, site = tmp_path / ".whl", tmp_path / "out" / ".site"
    assert needs.install_wheels(site, wheels) == ""
    make_wheel(wheels, "thing")
    assert needs.install_wheels(site, wheels) == f"wheels in {wheels}: 1 installed"
    code = "import thing; print(thing.__file__)"
    env = needs.environment(site)
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True)
    assert Path(done.stdout.strip()) == site / "thing.py"
    assert needs.install_wheels(site, wheels) == ""
    make_wheel(wheels, "other")
    assert needs.install_wheels(site, wheels).endswith("2 installed")


def test_wheels_that_do_not_fit_are_said_in_a_line_and_the_last_set_stays(tmp_path: Path):
    wheels, site = tmp_path / ".whl", tmp_path / ".site"
    make_wheel(wheels, "thing")
    needs.install_wheels(site, wheels)
    (wheels / "odd-1.0-cp27-cp27m-win32.whl").write_bytes(b"")
    note = needs.install_wheels(site, wheels)
    assert "not installed" in note
    assert "not a supported wheel" in note
    assert "\n" not in note
    assert (site / "thing.py").is_file()


def test_images_are_found_where_they_are_brought(tmp_path: Path):
    brought, env = tmp_path / ".data", needs.environment()

    def words(data: str = "cifar10") -> tuple[str, ...]:
        return needs.find_images(data, env, brought).words

    brought.mkdir()
    (brought / "images.tar.xz").touch()
    assert words() == ("data.source=image_folder", f"data.root={brought / 'images.tar.xz'}")
    (brought / "more.zip").touch()
    assert words() == ()
    assert "2 archives in .data/" in needs.find_images("cifar10", env, brought).lack
    assert words(str(brought / "more.zip")) == (
        "data.source=image_folder",
        f"data.root={brought / 'more.zip'}",
    )
    (brought / "cifar-10-python.tar.gz").touch()
    assert words() == ("data.source=cifar10", f"data.root={brought}")
    assert words("synthetic")[0] == "data.source=synthetic"


@pytest.mark.slow
def test_that_cifar10_cannot_be_fetched_is_found_out_beforehand(tmp_path: Path):
    closed = "http://127.0.0.1:9"  # nothing listens there
    env = needs.environment() | {
        "https_proxy": closed,
        "http_proxy": closed,
        "AMPCOMPARE_CACHE": str(tmp_path),
    }
    assert needs.find_images("cifar10", env, tmp_path / "none").lack.startswith(
        "images (CIFAR-10 cannot be fetched"
    )
    (tmp_path / "cifar10-0123.npz").touch()  # left by an earlier run
    assert needs.find_images("cifar10", env, tmp_path / "none").words == ("data.source=cifar10",)


def with_omegaconf(refused: dict[str, str]) -> dict[str, str]:
    """The same without the others: all that a benchmark says it needs is there."""
    hook = Path(refused["PYTHONPATH"].split(os.pathsep)[-1]) / "sitecustomize.py"
    hook.write_text(REFUSE.format(names=set(ABSENT) - {"omegaconf"}))
    return refused


@pytest.mark.slow
def test_throughput_runs_without_wandb_and_goes_on_from_its_rounds(refused: dict[str, str], tmp_path: Path):
    options = ["--backends", "none", "--batch-sizes", "16", "--steps", "5", "--device", "cpu", "--go-on"]
    command = [sys.executable, "-m", "ampcompare.cli", "bench", "throughput", "data.train_limit=64", *options]

    def measured(rounds: int) -> list[float]:
        done = subprocess.run(
            [*command, "--rounds", str(rounds), "--out", str(tmp_path / "kept")],
            env=with_omegaconf(refused) | {"OMP_NUM_THREADS": "1"},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        newest = max((tmp_path / "kept").glob("throughput-*.json"), key=os.path.getmtime)
        (row,) = json.loads(newest.read_text())["rows"]
        return [one["images_per_second"] for one in row["rounds"]]

    first = measured(1)
    lines = (tmp_path / "kept" / "rounds.jsonl").read_text()
    (tmp_path / "kept" / "rounds.jsonl").write_text(lines + '{"request": {"cut')  # killed while it wrote
    both = measured(2)
    assert both[:1] == first
    assert len(both) == 2


@pytest.mark.slow
def test_the_recipe_lacks_no_more_than_it_says(refused: dict[str, str], tmp_path: Path):
    words = [
        "width=16",
        "batch_size=8",
        "batches=2",
        "epochs=1",
        "--backends",
        "none",
        "--rounds",
        "1",
        "--device",
        "cpu",
    ]
    command = [sys.executable, "-m", "ampcompare.cli", "bench", "recipe", *words]
    done = subprocess.run(command, env=with_omegaconf(refused), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "Medians of 1" in done.stdout
