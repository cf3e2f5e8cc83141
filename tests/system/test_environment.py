"""What is recorded of a machine: hashed names, what its 16-bit dtypes run on, its device."""

import json
import os
import platform
import subprocess
import sys
from typing import Any

import pytest
import torch
from support.outside import Outside

from ampcompare.system.device import (
    event_recorder,
    has_float64,
    is_channels_last,
    peak_mib,
    reserved_mib,
    wait_for,
)
from ampcompare.system.distributed import DistributedContext
from ampcompare.system.environment import add_earlier_machines, describe_arithmetic, name_machine

CPU = torch.device("cpu")
SAPPHIRE = frozenset("avx2 avx512f avx512_bf16 avx512_fp16 amx_tile amx_bf16".split())
GRANITE = SAPPHIRE | {"amx_fp16"}
ZEN4 = frozenset("avx2 avx512f avx512_bf16".split())
SKYLAKE = frozenset("avx2 avx512f".split())
ROME = frozenset({"avx2"})


def test_a_host_is_known_again_and_its_name_is_not_recorded(outside: Outside):
    def named(host: str) -> dict[str, Any]:
        outside.replace(platform, "node", lambda: host)
        return name_machine(CPU, DistributedContext())

    one, other = named("node-17.cluster.example"), named("node-18.cluster.example")
    assert one == named("node-17.cluster.example") != other
    assert one.keys() == {"host", "gpu"}
    assert one["gpu"] is None
    assert "node" not in repr(one)
    assert len(one["host"]) == 12
    assert int(one["host"], 16) >= 0


def test_a_resumed_run_keeps_its_earlier_machines():
    first, second, third = ({"host": name, "gpu": None} for name in "abc")
    assert add_earlier_machines(first, first) == first
    moved = add_earlier_machines(third, add_earlier_machines(second, first))
    assert moved == {**third, "earlier": [first, second]}
    assert add_earlier_machines(third, moved) == moved
    assert add_earlier_machines(first, moved) == {**first, "earlier": [second, third]}


@pytest.fixture
def machine(outside: Outside, monkeypatch: pytest.MonkeyPatch):
    """Simulate an x86 machine with these flags, on which oneDNN supports the named dtypes."""

    def make(flags, takes=("bfloat16", "float16"), name="x86_64", limit=None):
        outside.set_processor(flags, takes, name)
        monkeypatch.delenv("DNNL_MAX_CPU_ISA", raising=False)
        monkeypatch.setenv("ONEDNN_MAX_CPU_ISA", limit or "")
        return describe_arithmetic(CPU)["arithmetic"]

    return make


def test_each_kind_of_processor_has_its_units(machine):
    assert machine(GRANITE) == {"bfloat16": "amx_bf16", "float16": "amx_fp16"}
    assert machine(SAPPHIRE) == {"bfloat16": "amx_bf16", "float16": "fp32"}
    assert machine(ZEN4, takes=["bfloat16"]) == {"bfloat16": "avx512_bf16", "float16": "fp32"}
    assert machine(SKYLAKE, takes=["bfloat16"]) == {"bfloat16": "fp32", "float16": "fp32"}
    assert machine(ROME, takes=[]) == {"bfloat16": "fp32", "float16": "fp32"}


def test_a_limit_on_instruction_sets_is_heeded(machine):
    for limit, bfloat16, float16 in [
        ("AVX512_CORE_AMX", "amx_bf16", "fp32"),
        ("avx512_core_fp16", "avx512_bf16", "fp32"),
        ("AVX2", "fp32", "fp32"),
        ("no such set", "amx_bf16", "amx_fp16"),
    ]:
        assert machine(GRANITE, limit=limit) == {"bfloat16": bfloat16, "float16": float16}


def test_unknown_values_are_recorded_as_unknown(machine):
    unknown = {"bfloat16": "unknown", "float16": "unknown"}
    assert machine(None) == unknown
    assert machine(frozenset({"asimdhp", "bf16"}), name="aarch64") == unknown
    assert machine(frozenset({"asimdhp"}), name="arm64", takes=[]) == {"bfloat16": "fp32", "float16": "fp32"}


@pytest.mark.slow
@pytest.mark.skipif(platform.machine() != "x86_64", reason="the limit is of oneDNN on x86")
def test_a_process_capped_to_avx2_computes_both_dtypes_in_fp32():
    code = "import json, torch; from ampcompare.system.environment import describe_arithmetic, isa_limit;"
    code += "print(json.dumps([isa_limit(), describe_arithmetic(torch.device('cpu'))]))"
    environment = os.environ | {"ONEDNN_MAX_CPU_ISA": "AVX2", "ATEN_CPU_CAPABILITY": "avx2"}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, check=True)
    both = {"bfloat16": "fp32", "float16": "fp32"}
    assert json.loads(done.stdout) == ["AVX2", {"arithmetic": both}]


def test_mps_is_waited_for_and_has_neither_float64_nor_a_peak(outside: Outside):
    waits: list[str] = []
    mps = torch.device("mps")
    outside.replace(torch.mps, "synchronize", lambda: waits.append("here"))
    outside.replace(torch.mps, "driver_allocated_memory", lambda: 3 * 2**20)
    assert [has_float64(device) for device in (CPU, torch.device("cuda"), mps)] == [True, True, False]
    wait_for(mps)
    assert isinstance(event_recorder(mps)(), float)
    assert len(waits) == 2
    assert (peak_mib(mps), reserved_mib(mps)) == (None, 3)


def test_the_layout_is_the_requested_one_or_the_default_of_the_device():
    for asked, kind, is_last in [
        ("auto", "cuda", True),
        ("auto", "cpu", False),
        ("contiguous", "cuda", False),
        ("channels_last", "cpu", True),
    ]:
        assert is_channels_last(asked, torch.device(kind)) is is_last
