"""`ampcompare doctor`: a line for each thing, whatever is missing."""

import platform
import sysconfig
from pathlib import Path
from typing import Any

import pytest
import torch
import wandb
from support.outside import Outside

from ampcompare.bench.doctor import Finding, default_backends, examine, run_doctor
from ampcompare.cli import main
from ampcompare.system.environment import describe_arithmetic

TOPICS = "software device processor threads float32 float16 bfloat16 mixed compiler account data".split()


@pytest.fixture
def amx(outside: Outside) -> None:
    """Set the rates of a slow machine with AMX, which saves a second per test."""
    outside.set_convolution_rates({"float32": 1.0, "float16": 0.005, "bfloat16": 4.5}, call=0.0)


def found() -> dict[str, Finding]:
    return {finding.topic: finding for finding in examine()}


def test_every_topic_has_a_line(amx, capsys):
    with pytest.raises(SystemExit) as end:
        main(["doctor"])
    assert end.value.code == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines if not line.startswith(" ")] == TOPICS


def test_each_dtype_is_native_or_computed_in_fp32_as_a_run_records_it(amx):
    said, cpu = found(), torch.device("cpu")
    for dtype, runs_on in describe_arithmetic(cpu)["arithmetic"].items():
        how = {"fp32": "computed in fp32; ", "unknown": "support unknown; "}.get(
            runs_on, f"native ({runs_on})"
        )
        assert said[dtype].message.startswith(how)
    assert "4.5x the rate of fp32" in said["bfloat16"].message
    assert "GFLOP/s on one core in a training convolution" in said["float32"].message


def test_the_advice_names_the_backends_that_bench_compares_by_default(amx):
    backends = default_backends(torch.device("cpu"))
    mixed = found()["mixed"]
    assert f"to measure {', '.join(backends[:-1])} and {backends[-1]}: " in mixed.todo
    assert mixed.todo.endswith(" bench")
    assert ("native_bf16" in backends) is ("backend=native_bf16 may be faster" in mixed.message)


@pytest.mark.parametrize(
    ("topic", "owner", "name", "expected"),
    [
        ("device", platform, "platform", 1),  # without a device no run can start
        ("types", torch.nn.functional, "conv2d", 0),
        ("compiler", sysconfig, "get_path", 0),
        ("account", wandb, "setup", 0),
    ],
)
def test_a_failing_check_is_one_line_and_the_others_run(
    amx, outside: Outside, topic: str, owner: Any, name: str, expected: int
):
    def broken(*_: Any, **__: Any) -> None:
        raise OSError("no such\nthing \x1b[31m")

    outside.replace(owner, name, broken)
    lines: list[str] = []
    code = run_doctor(lines.append)
    (line,) = [line for line in lines if "could not be determined (OSError: no such" in line]
    assert line.startswith(topic)
    assert line.isprintable()
    assert code == expected
    assert len([line for line in lines if not line.startswith(" ")]) >= len(TOPICS) - 4


def test_missing_compiler_account_and_data_are_reported_with_advice(amx, monkeypatch, tmp_path: Path):
    monkeypatch.setenv("CXX", "no-such-compiler")
    monkeypatch.setenv("AMPCOMPARE_CACHE", str(tmp_path))
    said = found()
    assert "no C++ compiler (no-such-compiler)" in said["compiler"].message
    assert "execution=eager works without them" in said["compiler"].todo
    assert "not logged in, runs are recorded offline" in said["account"].message
    assert "wandb login" in said["account"].todo
    assert f"downloads it (170 MB) to {tmp_path}" in said["data"].message
    (tmp_path / "cifar-10-python.tar.gz").touch()
    assert found()["data"].message == f"CIFAR-10 is in {tmp_path}/cifar-10-python.tar.gz"


def test_an_account_is_found_without_a_request(amx, monkeypatch):
    monkeypatch.setenv("WANDB_API_KEY", "a" * 40)
    monkeypatch.setenv("WANDB_BASE_URL", "http://127.0.0.1:9")
    assert "logged in" in found()["account"].message
    monkeypatch.setenv("WANDB_MODE", "offline")
    assert "WANDB_MODE=offline is set" in found()["account"].message
