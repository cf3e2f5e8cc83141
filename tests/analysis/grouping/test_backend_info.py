"""What a record says about its backend: the GPU's TF32, the dtype, the name."""

from typing import Any

import pytest
from support.fakes import make

from ampcompare import metrics
from ampcompare.analysis.grouping.backend_info import dtype_16bit_of, dtype_of, has_tf32, label_of
from ampcompare.runs import RunRecord


def recorded(backend: str = "none", **environment: Any) -> RunRecord:
    """Return a run of a backend with these entries of its environment."""
    run = make(backend)
    run.summary["environment"] = {**run.environment, **environment}  # type: ignore[dict-item]
    return run


@pytest.mark.parametrize(
    ("capability", "expected"),
    [
        *[
            ("8.0", True),
            ("7.5", False),
            ("8.9", True),
            ("10.0", True),
            ("12", True),
            (9, True),
            (7.5, False),
        ],
        *[("7.9.1", False), ("unknown", False)],
    ],
)
def test_tf32_begins_with_compute_capability_8(capability: object, expected: bool):
    assert has_tf32(recorded(device_name="NVIDIA A100", compute_capability=capability)) is expected
    assert has_tf32(recorded(device_type="cpu", compute_capability=capability)) is False


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("NVIDIA A100-SXM4-80GB", True),
        ("NVIDIA A10G", True),
        ("NVIDIA H200", True),
        ("NVIDIA L4", True),
        ("NVIDIA GeForce RTX 3080 Ti", True),
        ("NVIDIA GeForce RTX 5090", True),
        ("NVIDIA RTX A6000", True),
        ("NVIDIA RTX 6000 Ada Generation", True),
        ("NVIDIA GeForce RTX 2080 Ti", False),
        ("Quadro RTX 6000", False),
        ("Tesla V100-SXM2-32GB", False),
        ("Tesla T4", False),
        ("NVIDIA TITAN RTX", False),
        ("AMD Instinct MI300X", False),
    ],
)
def test_a_record_without_the_capability_is_known_by_the_name_of_its_gpu(name: str, expected: bool):
    run = recorded(device_name=name)
    run.environment.pop("compute_capability", None)  # type: ignore[attr-defined]
    assert has_tf32(run) is expected


@pytest.mark.parametrize(
    ("backend", "weights", "label", "dtype"),
    [
        ("none", ["float32"], "none", "float32"),
        ("none", ["bfloat16", "float32"], "bf16 weights (backend=none)", "bfloat16"),
        ("native", ["float16"], "fp16 weights (backend=native)", "float16"),
        ("fp16", ["float16"], "fp16", "float16"),
        ("apex_o2", ["float16"], "apex_o2", "float16"),
        ("none", "bfloat16", "none", "float32"),  # no list: another program's record
    ],
)
def test_unexpected_16_bit_weights_are_part_of_the_name(backend: str, weights: Any, label: str, dtype: str):
    run = recorded(backend, **{metrics.WEIGHT_DTYPES: weights})
    assert (label_of(run), dtype_of(run)) == (label, dtype)
    assert dtype_16bit_of(run) == {"float32": "", "bfloat16": "bf16", "float16": "fp16"}[dtype]
