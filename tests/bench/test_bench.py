"""`ampcompare bench`: trainings that take turns, what is said of one that cannot, its files."""

import json
import random
import re
from pathlib import Path

import pytest

from ampcompare.bench import compare
from ampcompare.bench.commands import USUAL, arms_of
from ampcompare.bench.interval import interval, ratio_of
from ampcompare.cli import main
from ampcompare.errors import UserError

TINY = ["model.name=tiny", "data.source=synthetic", "data.train_limit=64", "device=cpu", "batch_size=16"]
FIELDS = ("label", "ratio", "low", "high", "step_ms", "images_per_second", "peak_mib", "rounds", "failed")
NETWORK = """
import os, threading, time
from pathlib import Path
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self, num_classes):
        super().__init__()
        self.body = nn.Sequential(nn.Flatten(), nn.Linear(3072, num_classes))

    def forward(self, x):
        print("a line of the network's own")
        if torch.is_autocast_enabled("cpu"):
            BODY
        return self.body(x)

def build(num_classes=10):
    return Net(num_classes)
"""


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rounds end it before the minutes, which a busy machine may need."""
    monkeypatch.setattr(compare, "LOOKS", (3, 6, 12))
    monkeypatch.setattr(compare, "_turn", lambda minutes, count: 0.02)
    monkeypatch.setattr(compare, "LONG", 0.01)  # of five minutes


def network(folder: Path, under_autocast: str) -> list[str]:
    (folder / "net.py").write_text(NETWORK.replace("BODY", under_autocast))
    return [f"model.name={folder}/net.py:build", *TINY[1:]]


def bench(folder: Path, *words: str) -> dict:
    file = folder / "bench.json"
    with pytest.raises(SystemExit) as end:
        main(["bench", *words, "--json", str(file)])
    assert end.value.code == 0
    return json.loads(file.read_text())


@pytest.mark.parametrize("level", [0.95, 1 - 0.05 / 12])
@pytest.mark.parametrize("n", [12, 24, 48])
def test_an_interval_holds_the_true_median_as_often_as_it_says(n: int, level: float):
    draw = random.Random(3)
    spans = [interval([draw.lognormvariate(0, 1) for _ in range(n)], level) for _ in range(2000)]
    held = sum(low <= 1 <= high for low, high in spans) / len(spans)  # the median of this distribution is 1
    assert held >= level - 0.01


def test_below_twelve_rounds_there_is_no_interval_and_a_ratio_is_of_rounds_that_both_have():
    assert interval([1.0] * 11) is None
    assert interval([1.0] * 12) == (1.0, 1.0)
    assert interval([1.0] * 12, 0.9999) is None
    assert ratio_of([4.0, 2.0, 9.0, 100.0], [2.0, 2.0, 3.0]) == (2.0, None, None)


def test_lists_are_arms_with_fp32_first_and_without_any_they_are_the_usual_ones():
    assert [arm.label for arm in arms_of(TINY)] == [*USUAL]
    arms = arms_of([*TINY, "backend=apex_o1,none", "--execution=[eager,compile]"])
    named = ["none execution=eager", "none execution=compile"]
    assert [arm.label for arm in arms] == [*named, "apex_o1 execution=eager", "apex_o1 execution=compile"]
    assert arms[3].options == {"backend": "apex_o1", "batch_size": "16", "execution": "compile"}
    assert arms[3].words[-3:] == ("backend=apex_o1", "batch_size=16", "execution=compile")


@pytest.mark.parametrize(
    ("word", "said"),
    [
        ("backend=none,nativ", "backend='nativ': "),
        ("batch_size=0", "batch_size='0': "),
        ("epoch=1", "epochs"),
    ],
)
def test_what_is_wrong_is_one_line_before_anything_starts(word: str, said: str):
    with pytest.raises(UserError, match=re.escape(said)):
        arms_of([*TINY, word])


@pytest.mark.slow
def test_each_arm_is_a_row_beside_a_control_with_a_chart(tmp_path: Path, capfd: pytest.CaptureFixture[str]):
    words = [*TINY, "backend=none,apex_o1", "batch_size=8,16", "--minutes", "5"]
    found = bench(tmp_path, *words, "--chart", str(tmp_path / "new" / "speed.svg"))
    labels = [f"{name} batch_size={size}" for name in ("none", "apex_o1") for size in (8, 16)]
    assert [arm["label"] for arm in found["arms"]] == labels
    assert (found["baseline"], found["level"]) == (labels[0], 1 - 0.05 / 12)
    for arm in [*found["arms"], found["control"]]:
        assert set(FIELDS) <= arm.keys()
        assert arm["failed"] is None
        size = int(arm["options"]["batch_size"])
        assert arm["step_ms"] * arm["images_per_second"] == pytest.approx(1e3 * size, rel=0.3)
        assert arm["rounds"] == 12
        assert arm["low"] <= arm["ratio"] <= arm["high"]
        assert arm["peak_mib"] > 100
    said = capfd.readouterr().out
    assert "The control, none batch_size=8 once more, is" in said
    assert "<svg" in (tmp_path / "new" / "speed.svg").read_text()


@pytest.mark.slow
def test_one_that_fails_one_that_is_slow_and_one_that_does_not_fit_do_not_stop_the_others(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)
    body = """if x.shape[0] == 8:
                raise ValueError("no half here")
            if x.shape[0] == 16:
                time.sleep(5)
            if x.shape[0] == 24 and not Path("been").exists():
                Path("been").touch()
                os.kill(os.getpid(), 9)  # as of one whose memory is out
            if x.shape[0] == 32:
                threading.Timer(0.1, os._exit, [7]).start()  # while others have their turn"""
    words = [*network(tmp_path, body), "backend=none,native", "batch_size=8,16,24,32", "--minutes", "5"]
    found = {arm["label"]: arm for arm in bench(tmp_path, *words)["arms"]}
    failed, slow = found["native batch_size=8"], found["native batch_size=16"]
    assert (failed["failed"], failed["ratio"], failed["rounds"]) == ("ValueError: no half here", None, 0)
    assert (slow["rounds"], slow["low"], slow["failed"]) == (1, None, None)
    assert slow["step_ms"] > 5_000
    assert slow["ratio"] < 1
    assert found["native batch_size=32"]["failed"] == "its process ended by exit code 7"
    assert found["none batch_size=16"]["rounds"] > 1
    assert found["native batch_size=24"]["rounds"] > 1  # in turn with the baseline alone
    said = capfd.readouterr()
    assert "native batch_size=8: ValueError: no half here" in said.out
    assert "of the network's own" not in said.out + said.err


@pytest.mark.slow
def test_beside_a_slow_baseline_the_others_are_told_from_one_step(tmp_path: Path):
    words = network(tmp_path, "return self.body(x)")
    source = (tmp_path / "net.py").read_text()
    (tmp_path / "net.py").write_text(
        source.replace(
            "        return self.body(x)\n\ndef", "        time.sleep(5)\n        return self.body(x)\n\ndef"
        )
    )
    base, native = bench(tmp_path, *words, "batch_size=8", "backend=none,native", "--minutes", "5")["arms"]
    assert (base["rounds"], base["failed"]) == (1, None)
    assert (native["rounds"], native["low"], native["failed"]) == (1, None, None)
    assert native["ratio"] > 1


@pytest.mark.slow
def test_a_baseline_that_fails_ends_it_with_its_reason(tmp_path: Path, capfd: pytest.CaptureFixture[str]):
    (tmp_path / "net.py").write_text("def build(num_classes=10):\n    raise RuntimeError('no weights')\n")
    with pytest.raises(SystemExit) as end:
        main(["bench", f"model.name={tmp_path}/net.py:build", *TINY[1:]])
    assert end.value.code == 2
    assert "no weights" in capfd.readouterr().err.splitlines()[0]
