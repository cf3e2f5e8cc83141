"""Runs a training loop to its end: the exit code, and one line for the user where it ends early."""

import logging
from collections.abc import Callable
from pathlib import Path

from ampcompare.data.worker_signals import is_worker_loss
from ampcompare.errors import TrainingError, UserError, describe_exception, reason
from ampcompare.runtime.signals import EXIT_FAILED, EXIT_INTERRUPTED
from ampcompare.system.device import is_out_of_memory
from ampcompare.system.distributed import is_peer_failure
from ampcompare.training.anomalies import NonFiniteLossError
from ampcompare.training.loaders import find_nonfinite_values
from ampcompare.training.loop import TrainingLoop

log = logging.getLogger(__name__)


def run_loop(loop: TrainingLoop, find_remedy: Callable[[], str] = str) -> int:
    """Run the loop and return the exit code, after logging why it is not 0.

    Args:
        find_remedy: Returns what helps a step that fails under the backend and runs in fp32, or "".

    Raises:
        UserError: The user's data raised it during the training, or the backend cannot compute a step and a
            remedy is known; its exit code is 1.
    """
    stop = loop.stop
    if stop.is_interruption() and loop.world.size == 1:  # several processes agree on it after a step
        log.warning(f"interrupted before step {loop.step + 1} ({stop.reason}); no work is lost")
        return stop.exit_code
    try:
        loop.run()
    except KeyboardInterrupt:
        log.warning(f"interrupted at step {loop.step}")
        return EXIT_INTERRUPTED
    except UserError as problem:
        problem.exit_code = EXIT_FAILED
        raise
    except Exception as problem:
        exit_code = _explain(loop, problem)
        if exit_code is not None:
            return exit_code
        remedy = find_remedy()
        if not remedy:
            raise
        raise _explain_unsupported(loop, problem, remedy) from None
    if not loop.stopped:
        return 0
    log.warning(f"interrupted at step {loop.step} ({stop.reason}){describe_resume(loop, 'continue')}")
    return stop.exit_code


def _explain(loop: TrainingLoop, problem: Exception) -> int | None:
    """Log why the loop failed and return the exit code; return None for a fault of the program."""
    stop = loop.stop
    failure = _describe_failure(loop, problem)
    if failure is not None:
        log.error(f"error: {failure}")
        return EXIT_FAILED
    lost = describe_lost_process(problem)
    # A signal to every process of a job ends what a step needs: a worker, a compiler, another process.
    if stop.is_interruption():
        cause = lost or f"the step could not be finished ({reason(problem)})"
        resume = describe_resume(loop, "continue")
        log.error(f"interrupted at step {loop.step} ({stop.reason}): {cause}{resume}")
        return stop.exit_code
    if lost is not None:
        log.error(f"error: step {loop.step}: {lost}{describe_resume(loop, 'continue')}")
        return EXIT_FAILED
    return None


def _explain_unsupported(loop: TrainingLoop, problem: Exception, remedy: str) -> UserError:
    """Return the error for a step that the backend cannot compute, with its remedy."""
    name = loop.config.model.name
    file = name.partition(":")[0]
    path = Path(file).resolve() if file.endswith(".py") else None
    described = describe_exception(problem, path)
    error = UserError(f"model.name={name!r}: step {loop.step} failed ({described}){remedy}")
    error.exit_code = EXIT_FAILED
    return error.with_cause(problem)


def _describe_failure(loop: TrainingLoop, problem: Exception) -> str | None:
    """Return why the training itself failed, or None for any other exception."""
    if isinstance(problem, NonFiniteLossError):
        return problem.explain(*find_nonfinite_values(loop.train))
    if isinstance(problem, TrainingError):
        return str(problem)
    if not is_out_of_memory(problem):
        return None
    return (
        f"out of memory on {loop.device} with batch_size={loop.config.batch_size}; try a smaller "
        "batch_size with training.accumulate, or memory-saving precision (backend=native)"
    )


def describe_lost_process(problem: Exception) -> str | None:
    """Return which process that the training needs has ended, or None for any other exception."""
    if is_worker_loss(problem):
        return reason(problem)
    if not is_peer_failure(problem):
        return None
    return f"another process of this run has ended; see its message ({reason(problem)})"


def describe_resume(loop: TrainingLoop, purpose: str) -> str:
    """Return what to do about a run that did not end well, if there is a checkpoint; "" without one.

    Args:
        purpose: What the user resumes it for, such as `continue`.
    """
    saved = loop.checkpoints.saved_step if loop.checkpoints else None
    if saved is None:
        return ""
    if saved == loop.step:
        return f"; {purpose} with resume=auto"
    return f"; {purpose} from the checkpoint at step {saved} with resume=auto"
