"""Why this machine cannot train with some options: device, TF32, CUDA graphs, a compiler.

A run checks the same when it is prepared (`run_context.prepare_run`). A sweep asks before its first run, in a
process of its own, because it does not load torch itself:

    echo '[["auto", "tf32", "eager"]]' | python -m ampcompare.training.machine_support
"""

import json
import sys
from collections.abc import Iterable

from ampcompare.config.schema import Config
from ampcompare.errors import UserError
from ampcompare.precision.registry import REGISTRY
from ampcompare.system.device import check_tf32, resolve_device
from ampcompare.training.torch_compile import check_execution


def explain_refusal(device: str, backend: str, execution: str) -> str:
    """Return the error of a run with these options on this machine, "" if the machine can train it.

    Args:
        device: The option `device`, such as `auto`.
        backend: The option `backend`. What a plug-in needs is not known.
        execution: The option `execution`.
    """
    try:
        found = resolve_device(device)
        if backend in REGISTRY and REGISTRY[backend].uses_tf32:
            check_tf32(found, backend)
        check_execution(Config(execution=execution), found)
    except UserError as problem:
        return str(problem)
    return ""


def main(needs: Iterable[tuple[str, str, str]]) -> None:
    """Print the answers as JSON, in a line of its own: a library may print, too."""
    print(f"\n{json.dumps([explain_refusal(*one) for one in needs])}")


if __name__ == "__main__":
    main(json.load(sys.stdin))
