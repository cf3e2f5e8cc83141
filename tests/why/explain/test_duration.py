"""Seconds of ops by rates, what bounds them, and what the page and the table make of modules."""

from __future__ import annotations

import pytest

from ampcompare.published.devices import devices, find_device
from ampcompare.why.explain.duration import bounds, take_duration
from ampcompare.why.explain.groups import grouping, summed
from ampcompare.why.explain.held import Held
from ampcompare.why.explain.speeds import Speeds, of_device
from ampcompare.why.explain.trace import Op, Trace

RATES = {"float32": 1e9, "float16": 4e9}


def op(name="conv2d", dtype="float32", size=0.0, flop=0.0, module="layer1.conv", why="left alone"):
    return Op(name, name, module, "forward", dtype, size, flop, why)


def trace(*ops):
    return Trace(list(ops), Held())


def speeds(**more):
    return Speeds(RATES, 1e9, "a device", "an error", **more)


def test_an_op_takes_the_longer_of_arithmetic_and_traffic():
    assert speeds().seconds(op(size=2e9, flop=1e9)) == 2.0
    assert speeds().seconds(op(size=1e9, flop=3e9)) == 3.0
    assert speeds().seconds(op(dtype="float16", size=0.1e9, flop=4e9)) == 1.0


def test_no_op_is_shorter_than_its_call():
    assert speeds(overhead=1e-5).seconds(op(size=1)) == 1e-5


def test_a_type_without_hardware_is_counted_at_fp32s_rate_and_told():
    found = speeds()
    assert found.rate("bfloat16") == RATES["float32"]
    assert found.missing == {"bfloat16"}


def test_tf32_counts_only_where_fp32_may_round_so():
    sheet = find_device("A100")
    assert of_device(sheet, tf32=True).rate("float32") == 156e12
    assert of_device(sheet, tf32=False).rate("float32") == 19.5e12


def test_time_is_the_same_by_kind_and_by_module():
    found = take_duration(trace(op(flop=1e9), op("relu", size=1e9, module="layer1.relu")), speeds())
    assert found.seconds == 2.0
    assert sum(part.seconds for part in found.by_module.values()) == 2.0
    assert found.moving == 1.0


def test_what_bounds_a_step_is_said_with_its_figures():
    base = take_duration(trace(op(flop=8e9), op("batch_norm", size=2e9)), speeds())
    other = take_duration(trace(op(dtype="float16", flop=8e9), op("batch_norm", "float16", 1e9)), speeds())
    said = " ".join(bounds(base, other, "native against none"))
    assert "a speed-up of 3.33." in said  # 10 s to 3 s
    assert "100 % of the bytes are batch_norm" in said
    assert "would stop at 10.00" in said


def test_every_device_of_the_table_has_its_figures_and_a_source():
    names = [device.name for device in devices()]
    assert len(set(names)) == len(names)
    for word in ("V100 SXM2", "T4", "A100", "L4", "4090", "H100 SXM", "H200", "B200", "Xeon"):
        device = find_device(word)
        assert device.flop_per_second["float32"] > 1e12
        assert device.bytes_per_second > 1e11
        assert device.source


def test_dense_figures_never_exceed_twice_those_of_a_lower_type():
    for device in devices():
        rates = device.flop_per_second
        if device.kind == "cuda" and "tf32" in rates:
            assert rates["float16"] == pytest.approx(2 * rates["tf32"], rel=0.03)


def test_modules_are_grouped_as_deep_as_fits():
    names = ["a.0.x", "a.1.x", "b.0", "(loss)"]
    assert set(grouping(names, most=4).values()) == {"a.0.x", "a.1.x", "b.0", "(loss)"}
    assert set(grouping(names, most=3).values()) == {"a", "b", "(loss)"}
    assert summed({"a.0.x": 1.0, "a.1.x": 2.0}, grouping(names, most=3))["a"] == 3.0
