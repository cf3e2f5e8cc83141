"""`ampcompare bench`: trainings in turns, what it reports of one that fails, its table and JSON."""

import io
import json
import random
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from rich.console import Console
from support.bench_results import arm, failed, result_of
from support.outside import Outside

import ampcompare
from ampcompare.analysis.bench_file import BenchFile
from ampcompare.analysis.statistics.median_interval import interval, is_even, ratio_of, smallest_difference
from ampcompare.bench import output
from ampcompare.bench.cli import build_arms
from ampcompare.bench.doctor import default_backends
from ampcompare.bench.runner import Schedule, run_benchmark
from ampcompare.cli import main
from ampcompare.errors import UserError
from ampcompare.training.run_context import make_config, prepare_run

TINY = ["model.name=tiny", "data.source=synthetic", "data.train_limit=64", "device=cpu", "batch_size=16"]
FIELDS = ("label", "ratio", "low", "high", "step_ms", "images_per_second", "peak_mib", "rounds", "failed")
# The rounds end it, not the minutes, which a busy machine may need.
SHORT = Schedule(5, looks=(3, 6, 12), turn_seconds=0.02, slow_fraction=0.01)
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


def network(folder: Path, under_autocast: str) -> list[str]:
    (folder / "net.py").write_text(NETWORK.replace("BODY", under_autocast))
    return [f"model.name={folder}/net.py:build", *TINY[1:]]


def measure(*overrides: str, schedule: Schedule = SHORT) -> tuple[BenchFile, str]:
    """Return the result, and the progress lines."""
    lines: list[str] = []
    return run_benchmark(build_arms([*overrides]), schedule, lines.append), "\n".join(lines)


@pytest.mark.slow
def test_a_training_leaves_the_terminal_and_ctrl_c_to_the_command(tmp_path: Path):
    """A terminal sends Ctrl-C to every process; the command then ends with what was measured."""
    words = [*network(tmp_path, "os.kill(os.getpid(), 2)"), "backend=none,native", "--minutes", "0.1"]
    command = [sys.executable, "-m", "ampcompare", "bench", *words, "--json", tmp_path / "bench.json"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "a line of the network's own" not in done.stdout
    found = json.loads((tmp_path / "bench.json").read_text())
    assert {one["label"]: one["failed"] for one in found["arms"]} == {"none": None, "native": None}


def printed(result: BenchFile) -> list[str]:
    console = Console(file=io.StringIO(), width=40)
    output.print_table(result, console)
    return console.file.getvalue().splitlines()


def benchmark(*labels: str, control: tuple[float, float] = (0.99, 1.02)) -> BenchFile:
    return result_of(*(arm(label, 1.0 + number) for number, label in enumerate(labels)), control=control)


@pytest.mark.parametrize("level", [0.95, 1 - 0.05 / 12])
@pytest.mark.parametrize("n", [12, 24, 48])
def test_an_interval_has_its_nominal_coverage(n: int, level: float):
    draw = random.Random(3)
    spans = [interval([draw.lognormvariate(0, 1) for _ in range(n)], level) for _ in range(2000)]
    held = sum(low <= 1 <= high for low, high in spans) / len(spans)  # the median of this distribution is 1
    assert held >= level - 0.01


def test_below_twelve_rounds_there_is_no_interval_and_a_ratio_is_of_rounds_that_both_have():
    assert interval([1.0] * 11) is None
    assert interval([1.0] * 12) == (1.0, 1.0)
    assert interval([1.0] * 12, 0.9999) is None
    assert ratio_of([4.0, 2.0, 9.0, 100.0], [2.0, 2.0, 3.0]) == (2.0, None, None)


def test_lists_are_arms_with_fp32_first():
    arms = build_arms([*TINY, "backend=apex_o1,none", "--memory_format=[contiguous,channels_last]"])
    named = [
        f"{name} memory_format={layout}"
        for name in ("none", "apex_o1")
        for layout in ("contiguous", "channels_last")
    ]
    assert [arm.label for arm in arms] == named
    assert arms[3].options == {"backend": "apex_o1", "batch_size": "16", "memory_format": "channels_last"}
    assert arms[3].overrides[-3:] == ("backend=apex_o1", "batch_size=16", "memory_format=channels_last")


@pytest.mark.parametrize(
    ("flags", "supports", "more"),
    [
        ("avx512f amx_bf16", True, ["native_bf16"]),
        ("avx512f avx512_bf16", True, ["native_bf16"]),
        ("avx512f", True, []),
        ("avx2", False, []),
    ],
)
def test_bf16_is_a_default_where_the_processor_has_instructions_for_it(
    flags: str, supports: bool, more: list[str], outside: Outside, monkeypatch: pytest.MonkeyPatch
):
    outside.set_processor(flags.split(), ["bfloat16", "float16"] if supports else [])
    monkeypatch.delenv("ONEDNN_MAX_CPU_ISA", raising=False)
    assert default_backends(torch.device("cpu")) == ["none", "native", "apex_o1", *more]


@pytest.mark.parametrize(
    ("capability", "expected"),
    [((7, 5), "none native apex_o1"), ((8, 0), "none tf32 native apex_o1 native_bf16")],
)
def test_tf32_and_bf16_are_defaults_on_gpus_from_ampere_on(capability, expected, outside: Outside):
    outside.set_gpu(capability)
    assert default_backends(torch.device("cuda:0")) == expected.split()


@pytest.mark.slow
def test_without_a_list_the_backends_are_the_default_ones_of_the_device():
    assert [arm.label for arm in build_arms(TINY)] == default_backends(torch.device("cpu"))


@pytest.mark.parametrize(
    ("ends", "shown", "even", "smallest"),
    [
        ((1.0025, 1.0032), "1.002 to 1.003", True, 0.0032),  # enough decimals to exclude 1
        ((0.98, 1.01), "0.98 to 1.01", True, 1 / 0.98 - 1),
        ((1.0101, 1.05), "1.01 to 1.05", False, 0.05),
        ((0.9, 0.989), "0.90 to 0.99", False, 1 / 0.9 - 1),
    ],
)
def test_a_control_is_uneven_when_its_interval_excludes_1_by_more_than_a_percent(ends, shown, even, smallest):
    assert is_even(*ends) is even
    assert smallest_difference(*ends) == pytest.approx(smallest)
    result = benchmark("none", "native", control=ends)
    (line,) = (line for line in output.sentences(result) if "Control" in line)
    assert f"(95% CI {shown})" in line
    assert ("uneven" in line) is not even
    assert ("smallest difference that this measurement resolves" in line) is even
    found = (result.control.is_even, result.control.smallest_difference)
    assert found == (even, pytest.approx(max(smallest, 0.02)))


def test_each_varied_option_has_a_column_and_no_value_is_broken():
    labels = [
        f"{backend} execution={execution} batch_size=128 memory_format=channels_last"
        for backend in ("none", "apex_o1_bf16")
        for execution in ("cuda_graph", "compile_graph")
    ]
    head, *rows = printed(benchmark(*labels))
    assert re.findall(r"backend|execution|memory_format|batch", head) == ["backend", "execution"]
    assert [row.split()[0:2] for row in rows[:4]] == [
        label.replace("execution=", "").split()[:2] for label in labels
    ]
    assert rows[4].split()[0] == "control"


def test_a_varied_option_is_no_common_setting_even_if_one_value_failed():
    result = result_of(arm("none"), failed("tf32", "no TF32 here"))
    assert output.common_settings(result) == "batch_size 128"


def test_dtypes_computed_in_fp32_get_a_caveat_and_no_explain_command():
    native = arm("native", 0.45, low=0.4, high=0.5)
    result = result_of(arm("none"), native)
    assert not any("nothing about a GPU" in line for line in output.sentences(result))
    slower = build_arms([*TINY, "backend=none,native"])
    assert "why explain" in output.next_command(result, slower)
    result = result_of(arm("none"), native.model_copy(update={"is_computed_in_fp32": True}))
    expected = "This CPU computes float16 operations in fp32: the speed of native says nothing about a GPU."
    assert expected in [*output.sentences(result)]
    assert output.next_command(result, slower) == ""


def test_only_mixed_precision_that_is_slower_in_the_same_execution_and_layout_is_to_be_explained():
    layouts = ("memory_format=contiguous", "memory_format=channels_last")
    arms = build_arms([*TINY, "backend=none,tf32,native", "memory_format=contiguous,channels_last"])
    ratios = {"none": (1.0, 0.9), "tf32": (0.8, 0.8), "native": (1.2, 0.95)}
    results = [
        arm(f"{backend} {layout}", ratio, spread=0.0 if ratio == 1 else 0.02)
        for backend, pair in ratios.items()
        for layout, ratio in zip(layouts, pair, strict=True)
    ]
    assert output.next_command(result_of(*results), arms) == ""
    results[-1] = arm(f"native {layouts[1]}", 0.88, spread=0.05)  # below none in channels_last, by chance
    assert output.next_command(result_of(*results), arms) == ""
    results[-1] = arm(f"native {layouts[1]}", 0.8)
    command = output.next_command(result_of(*results), arms)
    assert command.startswith(f"To see why native {layouts[1]} is slower than none {layouts[1]}: ")
    assert "backend=native" in command
    assert "--against" not in command


def test_a_baseline_in_mixed_precision_is_named_in_the_command_that_explains():
    arms = build_arms([*TINY, "backend=native,apex_o1"])
    results = [arm("native", spread=0.0), arm("apex_o1", 0.5)]
    command = output.next_command(result_of(*results), arms)
    assert command.endswith(" --against native")


def test_many_speed_ups_that_are_not_precise_are_counted_and_three_are_named():
    others = [arm(f"native execution={number}", 2.0, spread=0.2) for number in range(8)]
    result = result_of(arm("none"), *others)
    (line,) = (line for line in output.sentences(result) if "within 5%" in line)
    assert line == (
        "8 of 9 speed-ups not known to within 5%: native execution=0, native execution=1, native execution=2 "
        "and 5 more. For narrower intervals, measure longer: --minutes 4"
    )


@pytest.mark.parametrize(
    ("word", "said"),
    [
        ("backend=none,nativ", "backend='nativ': "),
        ("+backend=['none', 'nativ']", "backend='nativ': "),
        ("backend=[none", "backend='[none': "),
        ("backend=[]", "backend='[]': "),
        ("batch_size=0", "batch_size='0': "),
        (
            "memory_format=contiguous,foo",
            "memory_format='foo': expected one of auto, contiguous, channels_last",
        ),
        ("epoch=1", "epochs"),
    ],
)
def test_wrong_input_is_one_line_before_anything_starts(word: str, said: str):
    with pytest.raises(UserError, match=re.escape(said)):
        build_arms([*TINY, word])


@pytest.mark.slow
def test_the_command_prints_a_table_and_writes_json(tmp_path: Path, capfd: pytest.CaptureFixture[str]):
    overrides = [*TINY, "backend=none,native", "memory_format=channels_last,auto", "--minutes", "0.1"]
    file = tmp_path / "bench.json"
    with pytest.raises(SystemExit) as end:
        main(["bench", *overrides, "--json", str(file)])
    assert end.value.code == 0
    text = capfd.readouterr().out
    plan = (
        "Measuring 4 trainings and an A/A control, interleaved, for up to 0.1 minutes: backend=none,native "
    )
    assert text.startswith(plan)
    assert "Control (none memory_format=channels_last, measured a second time): " in text
    found = json.loads(file.read_text())
    assert (found["baseline"], found["varied"]) == (
        "none memory_format=channels_last",
        ["backend", "memory_format"],
    )
    for one in [*found["arms"], found["control"]]:
        assert set(FIELDS) <= one.keys()
    layouts = [one["options"]["memory_format"] for one in found["arms"]]
    assert layouts == ["channels_last", "contiguous"] * 2
    assert [one["options"]["batch_size"] for one in found["arms"]] == ["16"] * 4


@pytest.mark.slow
def test_the_fingerprint_equals_that_of_a_run(tmp_path: Path):
    overrides = [*network(tmp_path, "pass"), "batch_size=8"]
    config = make_config([*overrides, "backend=none"])
    run = prepare_run(config)
    record, facts = run.describe_environment(run.build_trainer()), run.describe_data()
    result, _ = measure(*overrides, "backend=none", schedule=Schedule(0.1, turn_seconds=0.02))
    assert result.fingerprint == {
        "model": f"{tmp_path}/net.py:build",
        "model_source": record["model_source"],
        "data": "synthetic",
        "data_source": None,
        "data_fingerprint": record["data_fingerprint"],
        "train_data": None,
        "test_set": facts["data/test_set"],
        "model_parameters": record["model_parameters"],
        "package_version": ampcompare.__version__,
    }


@pytest.mark.slow
def test_synthetic_images_in_the_place_of_a_data_set_have_no_fingerprint():
    result, _ = measure(
        "model.name=tiny", "device=cpu", "batch_size=8", "backend=none", "data.source=cifar100"
    )
    found = result.fingerprint
    assert (found["data"], found["test_set"], found["train_data"]) == ("cifar100", None, None)


@pytest.mark.slow
def test_preparation_may_take_longer_than_the_rounds(tmp_path: Path):
    overrides = [*network(tmp_path, "time.sleep(1.5)"), "backend=none,native"]
    source = (tmp_path / "net.py").read_text()
    (tmp_path / "net.py").write_text(source.replace("    return Net(", "    time.sleep(7)\n    return Net("))
    result, progress = measure(*overrides, schedule=Schedule(0.1, turn_seconds=0.02, slow_fraction=1.0))
    assert {arm.label: arm.failed for arm in result.arms} == {"none": None, "native": None}
    assert "first steps of training 3/3, native: 1 s (limit 600 s)" in progress


def test_the_limit_of_the_preparation_names_the_option_that_raises_it():
    expected = "loading PyTorch, network and data did not finish within 0 s; raise --prepare-minutes"
    with pytest.raises(UserError, match=expected):
        measure(*TINY, "backend=none", schedule=Schedule(1, 0.0))


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
    result, _ = measure(*network(tmp_path, body), "backend=none,native", "batch_size=8,16,24,32")
    found = {arm.label: arm for arm in result.arms}
    failed, slow = found["native batch_size=8"], found["native batch_size=16"]
    assert (failed.failed, failed.ratio, failed.rounds) == ("ValueError: no half here", None, 0)
    assert (slow.rounds, slow.low, slow.failed) == (1, None, None)
    assert slow.step_ms > 5_000
    assert slow.ratio < 1
    assert found["native batch_size=32"].failed == "its process exited with code 7"
    assert found["none batch_size=16"].rounds > 1
    assert found["native batch_size=24"].rounds > 1  # in turn with the baseline alone
    assert "native batch_size=8 failed: ValueError: no half here" in [*output.sentences(result)]
    assert next(row for row in printed(result) if row.split()[:2] == ["native", "8"]).split()[-1] == "failed"
    said = capfd.readouterr()
    assert "of the network's own" not in said.out + said.err


@pytest.mark.slow
def test_with_a_slow_baseline_each_training_is_measured_by_one_step(tmp_path: Path):
    overrides = network(tmp_path, "return self.body(x)")
    text = (tmp_path / "net.py").read_text()
    slow = "\n        time.sleep(5)\n        return self.body(x)\n\n"
    (tmp_path / "net.py").write_text(text.replace("\n        return self.body(x)\n\n", slow))
    base, native = measure(*overrides, "batch_size=8", "backend=none,native")[0].arms
    assert (base.rounds, base.failed) == (1, None)
    assert (native.rounds, native.low, native.failed) == (1, None, None)
    assert native.ratio > 1
