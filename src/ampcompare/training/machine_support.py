"""Check in the first process of a sweep that this machine can train all runs of the sweep.

A run refuses what its machine lacks, such as TF32. Without this check, the refused runs of a sweep would fail
one by one while the others train for hours.
"""

import json
import os

from ampcompare.config.run_series import NEEDS_VARIABLE
from ampcompare.errors import EXIT_UNSUITABLE, UserError
from ampcompare.precision.registry import REGISTRY
from ampcompare.system.device import check_tf32, resolve_device
from ampcompare.training.torch_compile import check_cuda_graph

KEYS = ("device", "backend", "execution")  # the options that depend on the machine


class UnsuitableMachine(UserError):
    """This machine cannot train some runs of the sweep that started this process."""

    exit_code = EXIT_UNSUITABLE


def check_machine_for_sweep() -> None:
    """Check that this machine can train the runs of the sweep that started this process, if one did.

    Raises:
        UnsuitableMachine: It cannot. The message names the values to leave out.
    """
    needs = [tuple(need) for need in json.loads(os.environ.get(NEEDS_VARIABLE, "[]"))]
    refusals = {need: refusal for need in needs if (refusal := _explain_refusal(*need))}
    if not refusals:
        return
    # The last part of each message says what a single run can do instead.
    reasons = "; ".join(dict.fromkeys(text.rpartition("; ")[0] or text for text in refusals.values()))
    accepted = [need for need in needs if need not in refusals]
    if not accepted:
        raise UnsuitableMachine(
            f"this machine can train none of the runs: {reasons}; change this option, or start the sweep on "
            "another machine"
        )
    # The values that only refused runs have, such as `backend=tf32`.
    lost = [
        f"{key}={value}"
        for number, key in enumerate(KEYS)
        for value in sorted({need[number] for need in refusals} - {need[number] for need in accepted})
    ]
    raise UnsuitableMachine(
        f"this machine cannot train some of the runs: {reasons}; leave out "
        f"{' and '.join(lost) or 'these values'}, or start the sweep on another machine"
    )


def _explain_refusal(device: str, backend: str, execution: str) -> str:
    """Return the error of a run with these options on this machine, "" if none is known.

    What a plug-in backend needs is not known, and a compiler is tried only by the runs that need it.
    """
    try:
        found = resolve_device(device)
        if backend in REGISTRY and REGISTRY[backend].uses_tf32:
            check_tf32(found, backend)
        check_cuda_graph(execution, found)
    except UserError as problem:
        return str(problem)
    return ""
