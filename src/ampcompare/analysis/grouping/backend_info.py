"""What the record of a run says about its backend."""

import re
from collections.abc import Iterable, Mapping

from ampcompare import metrics
from ampcompare.precision.registry import LABELS_BY_ALIAS, PLAIN, REGISTRY
from ampcompare.runs import RunRecord
from ampcompare.runtime.formatting import numeric_sort_key, printable, short

FP32 = "fp32"
FP32_NAME = f"{FP32} ({PLAIN})"  # what people read in place of the backend `none`
SHORT = {"float16": "fp16", "bfloat16": "bf16"}
AMPERE = 8.0  # compute capability from which NVIDIA's GPUs have TF32
# For records without the capability: names of NVIDIA GPUs since Ampere, as the driver reports them.
SINCE_AMPERE = re.compile(
    r"\b(A2|A10G?|A16|A30|A40|A100|A800|L4|L20|L40S?|H20|H100|H200|H800|GH200|B100|B200|B300|GB200|GB300"
    r"|RTX A\d{4}|RTX [3-5]0\d0|RTX \d{4} Ada|RTX PRO \d{4} Blackwell)\b"
)


def display_name(label: str) -> str:
    """Return the label of a backend as people read it: the baseline `none` is strict fp32.

    >>> display_name("none"), display_name("none · lr 0.1"), display_name("bf16")
    ('fp32 (none)', 'fp32 (none) · lr 0.1', 'bf16')
    """
    value, separator, rest = label.partition(" · ")
    return f"{FP32_NAME if value == PLAIN else value}{separator}{rest}"


def label_of(run: RunRecord) -> str:
    """Return the name under which a run is compared: its backend, or the label of a plug-in backend.

    A run with 16-bit weights under a backend that has fp32 weights is not a run of this backend. Its name
    begins with the dtype of its weights.
    """
    # Records of other programs may contain anything.
    candidates = (run.environment.get("backend_label"), run.option("backend"), "unknown")
    label = next(printable(text) for text in candidates if isinstance(text, str) and text.strip())
    dtype = unexpected_weights(run)
    return f"{SHORT[dtype]} weights (backend={label})" if dtype else label


def unexpected_weights(run: RunRecord) -> str:
    """Return the 16-bit dtype of trainable weights under a backend that has fp32 weights, else ""."""
    label = run.option("backend")
    name = label if isinstance(label, str) else ""
    built_in = REGISTRY.get(name) or REGISTRY.get(LABELS_BY_ALIAS.get(name.lower(), ""))
    recorded = run.environment.get(metrics.WEIGHT_DTYPES)
    if built_in is None or built_in.half_weights or not isinstance(recorded, list):
        return ""
    return next((dtype for dtype in recorded if dtype in SHORT), "")


def order_backends(values: Iterable[str]) -> list[str]:
    """Return each value once: built-in backends in their order, then others by name, with numbers by size."""
    distinct = set(values)
    built_in = [label for label in REGISTRY if label in distinct]
    return built_in + sorted(sorted(distinct - set(built_in)), key=numeric_sort_key)


def dtype_of(run: RunRecord) -> str:
    """Return torch's name of the dtype that a run computed in (`float16`), "" if it is unknown."""
    built_in = REGISTRY.get(str(run.option("backend")))
    if built_in and built_in.is_fp32:
        return unexpected_weights(run) or built_in.dtype
    if built_in:
        return built_in.dtype
    environment = run.environment
    candidates = (environment.get(metrics.PRECISION_DTYPE), environment.get("backend_type"))
    return next((short(printable(dtype)) for dtype in candidates if isinstance(dtype, str) and dtype), "")


def dtype_16bit_of(run: RunRecord) -> str:
    """Return the short name of a run's 16-bit dtype (`bf16`), "" for fp32 and if it is unknown."""
    return SHORT.get(dtype_of(run), "")


def describe_arithmetic(run: RunRecord) -> str:
    """Return what computed the run's dtype on a CPU.

    Returns:
        The instructions (`amx_bf16`), COMPUTED_IN_FP32, EMULATED, or UNKNOWN.
    """
    recorded = run.environment.get(metrics.ARITHMETIC)
    arithmetic = recorded.get(dtype_of(run)) if isinstance(recorded, Mapping) else None
    return short(printable(arithmetic)) if isinstance(arithmetic, str) and arithmetic else metrics.UNKNOWN


def has_tf32(run: RunRecord) -> bool:
    """Return whether a run had an NVIDIA GPU that computes in TF32; False if the record does not tell."""
    environment = run.environment
    if environment.get("device_type") != "cuda":
        return False
    capability = environment.get("compute_capability")
    if isinstance(capability, str | int | float):
        version = re.fullmatch(r"\d+(\.\d+)?", str(capability))
        return version is not None and float(version[0]) >= AMPERE
    name = str(environment.get("device_name", ""))
    return "NVIDIA" in name and SINCE_AMPERE.search(name) is not None


def list_tf32(run: RunRecord) -> list[str] | None:
    """Return which switches allowed TF32 in a run (`metrics.TF32_SWITCHES`).

    Returns:
        None if the record does not tell: the run had no GPU with TF32, or it is a recorded loop of an earlier
        version, which recorded matrix products alone.
    """
    # In our own trainings one option sets all switches.
    values = {
        key: run.environment.get(key if run.is_recorded else metrics.TF32) for key in metrics.TF32_SWITCHES
    }
    if not has_tf32(run) or not all(isinstance(value, bool) for value in values.values()):
        return None
    return [key for key, allowed in values.items() if allowed]


def describe_backend(run: RunRecord) -> str:
    """Return the description of a run's backend, "" if none is known."""
    built_in = REGISTRY.get(str(run.option("backend")))
    if built_in and built_in.is_fp32:
        weights = unexpected_weights(run)
        return f"{weights} weights without mixed precision" if weights else built_in.description
    recorded = built_in.description if built_in else run.environment.get("backend_words")
    dtype = dtype_of(run)
    if not recorded or not dtype:
        return ""
    short_dtype = SHORT.get(dtype, dtype)
    return str(recorded) if short_dtype in str(recorded) else f"{recorded}, {short_dtype}"
