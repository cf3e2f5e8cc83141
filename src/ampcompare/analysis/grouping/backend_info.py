"""What a record says of the backend of its run."""

import re
from collections.abc import Iterable, Mapping

from ampcompare import metrics
from ampcompare.precision.registry import REGISTRY
from ampcompare.runs import RunRecord
from ampcompare.runtime.formatting import numeric_sort_key, printable, short

AA_SUFFIX = " again (A/A)"  # ends the name of the baseline's control
SHORT = {"float16": "fp16", "bfloat16": "bf16"}
AMPERE = 8.0  # compute capability from which NVIDIA's GPUs have TF32
# Where a record lacks the capability: GPUs of Ampere and newer by their names, as the driver gives them.
SINCE_AMPERE = re.compile(
    r"\b(A2|A10G?|A16|A30|A40|A100|A800|L4|L20|L40S?|H20|H100|H200|H800|GH200|B100|B200|B300|GB200|GB300"
    r"|RTX A\d{4}|RTX [3-5]0\d0|RTX \d{4} Ada|RTX PRO \d{4} Blackwell)\b"
)


def label_of(run: RunRecord) -> str:
    """The name under which a run is compared: its backend, a plug-in's by its own label."""
    # Records of others may hold anything.
    said = (run.environment.get("backend_label"), run.option("backend"), "unknown")
    return next(printable(text) for text in said if isinstance(text, str) and text.strip())


def order_backends(values: Iterable[str]) -> list[str]:
    """Return each value once: built-in backends in their order, then the others by name, numbers by size."""
    wanted = set(values)
    known = [label for label in REGISTRY if label in wanted]
    return known + sorted(sorted(wanted - set(known)), key=numeric_sort_key)


def dtype_of(run: RunRecord) -> str:
    """Return the dtype that a run computed in by torch's name (`float16`), "" where nothing says it."""
    if declared := REGISTRY.get(str(run.option("backend"))):
        return declared.dtype
    recorded = run.environment
    said = (recorded.get(metrics.PRECISION_DTYPE), recorded.get("backend_type"))
    return next((short(printable(dtype)) for dtype in said if isinstance(dtype, str) and dtype), "")


def dtype_16bit_of(run: RunRecord) -> str:
    """Its type of less than 32 bits (`bf16`); nothing for fp32, and where none is known."""
    return SHORT.get(dtype_of(run), "")


def describe_arithmetic(run: RunRecord) -> str:
    """Return what computed the run's dtype on a CPU.

    Returns:
        The instructions (`amx_bf16`), COMPUTED_IN_FP32, EMULATED, or UNKNOWN.
    """
    recorded = run.environment.get(metrics.ARITHMETIC)
    found = recorded.get(dtype_of(run)) if isinstance(recorded, Mapping) else None
    return short(printable(found)) if isinstance(found, str) and found else metrics.UNKNOWN


def has_tf32(run: RunRecord) -> bool:
    """Whether a run had an NVIDIA GPU that computes in TF32, as far as its record tells; else False."""
    environment = run.environment
    if environment.get("device_type") != "cuda":
        return False
    told, name = environment.get("compute_capability"), str(environment.get("device_name", ""))
    if isinstance(told, str | int | float):
        found = re.fullmatch(r"(\d+)(\.\d+)?", str(told))
        return found is not None and float(found[0]) >= AMPERE
    return "NVIDIA" in name and SINCE_AMPERE.search(name) is not None


def describe_backend(run: RunRecord) -> str:
    """What the backend of a run says of itself, as far as that is known."""
    words, dtype = run.environment.get("backend_words"), dtype_of(run)
    if built_in := REGISTRY.get(str(run.option("backend"))):
        words = built_in.description
        if built_in.is_fp32:
            return built_in.description
    short = SHORT.get(dtype, dtype)
    return (str(words) if short in str(words) else f"{words}, {short}") if words and dtype else ""
