"""The keys that runs logged, and what to say of a key that none of them has."""

import math
from collections.abc import Sequence

from ampcompare import metrics
from ampcompare.errors import UserError, did_you_mean
from ampcompare.runs import RunRecord
from ampcompare.runs.nested import flatten
from ampcompare.runtime.formatting import printable, short

MAX_NAMES = 12


def logged_keys(runs: Sequence[RunRecord]) -> list[str]:
    """Return the keys that have a number in any run, sorted, without W&B's own."""
    names = {str(name) for run in runs for name in (*run.logged, *dict(flatten(run.summary)))}
    return sorted(name for name in names if not name.startswith("_") and is_logged(name, runs))


def sample_of(key: str, runs: Sequence[RunRecord]) -> str:
    """Return a value that was logged under a key, as text; "" without one."""
    values = (value for run in runs for value in run.logged.get(key, ((), ()))[1])
    return next((short(printable(repr(value))) for value in values), "")


def nearest_key(asked: str, keys: Sequence[str], *, end: str = "") -> str:
    """Return `did you mean eval/accuracy?` for `acc`, "" if no key is near.

    Args:
        asked: What the user wrote.
        keys: The known keys.
        end: What follows the question in a longer message; left out without a question.
    """
    hint = did_you_mean(asked, keys, 0.5, end=end)
    if hint:
        return hint
    containing = [key for key in keys if asked.lower() in key.lower()]
    return f"did you mean {min(containing, key=len)}?{end}" if containing else ""


def is_logged(key: str, runs: Sequence[RunRecord]) -> bool:
    """Return whether a run has a number under a key, in its rows or its summary."""
    return any(len(run.values(key)) or run.summary_number(key) is not None for run in runs)


def finite_values(key: str, runs: Sequence[RunRecord]) -> list[float]:
    """Return every finite value that runs have under a key, in their rows and summaries."""
    candidates = (value for run in runs for value in (*run.values(key), run.summary_number(key)))
    return [float(value) for value in candidates if value is not None and math.isfinite(value)]


def not_logged(option: str, key: str, runs: Sequence[RunRecord]) -> UserError:
    """Return the error for a key that an option names and no run logged as a number."""
    keys = logged_keys(runs)
    # A user looks for a result of an evaluation; a long record has dozens of keys before these.
    evaluations_first = sorted(keys, key=lambda name: (not name.startswith(metrics.EVAL_PREFIX), name))
    logged = ", ".join(evaluations_first[:MAX_NAMES]) or "nothing"
    sample = sample_of(key, runs)
    if sample:
        return UserError(
            f"{option} {key!r}: its values are no numbers, such as {sample}; logged as numbers: {logged}"
        )
    hint = nearest_key(key, keys, end=" ")
    return UserError(f"{option} {key!r}: no run logged this key as a number; {hint}logged: {logged}")
