"""`ampcompare bench`: trainings in turns, what it reports of one that fails, its table and JSON."""

import io
import random
import re
from pathlib import Path

import pytest
import torch
from rich.console import Console
from support.bench_results import arm, result_of
from support.outside import Outside

import ampcompare
from ampcompare.analysis.bench_file import BenchFile
from ampcompare.analysis.statistics.median_interval import interval, is_even, smallest_difference
from ampcompare.bench import output
from ampcompare.bench.cli import build_arms
from ampcompare.bench.doctor import default_backends
from ampcompare.bench.runner import Schedule, run_benchmark
from ampcompare.errors import UserError
from ampcompare.training.run_context import make_config, prepare_run

TINY = ["model.name=tiny", "data.source=synthetic", "data.train_limit=64", "device=cpu", "batch_size=16"]
# The rounds end it, not the minutes, which a busy machine may need.
SHORT = Schedule(5, looks=(3, 6, 12), turn_seconds=0.02, slow_fraction=0.01)
NETWORK = """
import os, time
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
    labels = [f"{name} execution={way} batch_size=9" for name in ("none", "apex_o1_bf16") for way in "ab"]
    head, *rows = printed(benchmark(*labels))
    assert re.findall(r"backend|execution|batch", head) == ["backend", "execution"]
    expected = [label.replace("execution=", "").split()[:2] for label in labels]
    assert [row.split()[:2] for row in rows[:4]] == expected
    assert rows[4].split()[0] == "control"


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


def test_the_limit_of_the_preparation_names_the_option_that_raises_it():
    expected = "loading PyTorch, network and data did not finish within 0 s; raise --prepare-minutes"
    with pytest.raises(UserError, match=expected):
        measure(*TINY, "backend=none", schedule=Schedule(1, 0.0))


@pytest.mark.slow
def test_one_that_fails_one_that_is_slow_and_one_that_does_not_fit_do_not_stop_the_others(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)
    body = """os.kill(os.getpid(), 2)  # a terminal sends Ctrl-C to every process
            if x.shape[0] == 9:
                raise ValueError("no half here")
            if x.shape[0] == 10:
                time.sleep(2)
            if x.shape[0] == 11 and not Path("been").exists():
                Path("been").touch()
                os.kill(os.getpid(), 9)  # as of one whose memory is out"""
    quick = Schedule(5, looks=(3,), turn_seconds=0.02, slow_fraction=0.005)
    words = [*network(tmp_path, body), "backend=native", "batch_size=8,9,10,11"]
    result, _ = measure(*words, schedule=quick)
    healthy, failed, slow, full = result.arms
    assert (failed.failed, failed.ratio, failed.rounds) == ("ValueError: no half here", None, 0)
    assert (slow.rounds, slow.low, slow.failed) == (1, None, None)
    assert slow.step_ms > 2_000
    assert slow.ratio < 1
    assert healthy.rounds > 1
    assert full.rounds > 1  # in turn with the baseline alone
    assert f"{failed.label} failed: ValueError: no half here" in [*output.sentences(result)]
    assert next(row for row in printed(result) if row.split()[0] == "9").split()[-1] == "failed"
    said = capfd.readouterr()
    assert "of the network's own" not in said.out + said.err
