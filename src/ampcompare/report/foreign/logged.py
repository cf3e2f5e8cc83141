"""What other people's runs logged: the keys that are numbers, and which of them is what."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence

from ampcompare import metrics
from ampcompare.errors import UserError, did_you_mean
from ampcompare.records import RunRecord
from ampcompare.records.tree import flatten
from ampcompare.report.foreign import names
from ampcompare.report.runs.metric import DEFAULT_METRIC, says_accuracy, says_direction
from ampcompare.report.words import printable, short, some

MOST_NAMES = 12
_AFTERTHOUGHTS = frozenset(
    {"runtime", "time", "seconds", "second", "samples", "sec", "step", "steps", "flos"}
)
_RANKED = 5  # top5_accuracy and the like come behind accuracy


class Logged:
    """The keys of a set of runs: what `key` each has, as numbers, in its rows or its summary."""

    def __init__(self, runs: Sequence[RunRecord]) -> None:
        self.runs = [run for run in runs if run.rows or run.summary]
        self._counts: Counter[str] = Counter()
        for run in self.runs:
            told = (key for key, _ in flatten(run.summary) if not key.startswith("_"))
            self._counts.update(list(dict.fromkeys([*run.logged, *told])))
        self.keys = list(self._counts)

    def runs_with(self, key: str) -> int:
        """In how many of the runs a key is a number."""
        return sum(has_number(run, key) for run in self.runs)

    def best(self, keys: Iterable[str], rank: Callable[[str], tuple[int, ...]]) -> str | None:
        """The key that most runs have as a number, of those the lowest rank."""
        sized = sorted(keys, key=lambda key: (-self._counts[key], rank(key), len(key), key))
        return next((key for key in sized if self.runs_with(key)), None)

    def named(self) -> str:
        """Some keys that the runs have, for a message: numbers, W&B's own left out."""
        shown = sorted(key for key in self.keys if not key.startswith("_"))
        found = [short(printable(key)) for key in shown[: 10 * MOST_NAMES] if self.runs_with(key)]
        more = len(shown) - MOST_NAMES
        listed = ", ".join(found[:MOST_NAMES]) or "nothing that is a number"
        return f"{listed} and {more} more" if more > 0 and len(found) > MOST_NAMES else listed

    def check(self, option: str, key: str) -> None:
        """Raise UserError for a key that no run has as a number."""
        if self.runs_with(key):
            return
        near = did_you_mean(key, self.keys, 0.5)
        raise UserError(
            f"{option} {key!r}: no run has it as a number; {near and near + ' '}logged: {self.named()}"
        )


def has_number(run: RunRecord, key: str) -> bool:
    """Whether a run has a number under a key, in its rows or in its summary."""
    return bool(key in run.logged and len(run.values(key))) or run.summary_number(key) is not None


def guess_metric(logged: Logged) -> str | None:
    """The key that most likely says how good a run became: of an evaluation before that of training, an
    accuracy before other scores, these before errors and losses. None where no name tells.
    """
    wanted = Counter(key for run in logged.runs if (key := _wanted(run, logged)))
    if wanted:
        return wanted.most_common(1)[0][0]
    if logged.runs_with(DEFAULT_METRIC):
        return DEFAULT_METRIC
    return logged.best((k for k in logged.keys if _metric_rank(k)), lambda k: _metric_rank(k) or ())


def guess_evaluated(logged: Logged) -> tuple[str | None, list[str]]:
    """Of runs under our names that name no metric: the score that their evaluations most likely mean, in the
    order of `guess_metric`, or the only one that there is; and all that they logged as `eval/NAME`.
    """
    keys = [key for key in logged.keys if key.startswith(metrics.EVAL) and logged.runs_with(key)]
    ranked = logged.best((k for k in keys if _metric_rank(k)), lambda k: _metric_rank(k) or ())
    return ranked or (keys[0] if len(keys) == 1 else None), sorted(keys)


def _wanted(run: RunRecord, logged: Logged) -> str | None:
    """What the program itself picks its best model by: `metric_for_best_model` of Hugging Face's Trainer."""
    said = run.option("metric_for_best_model")
    if not isinstance(said, str) or not said:
        return None
    bare = said.removeprefix("eval_")
    return names.first([said, f"eval/{bare}", f"eval_{bare}"], [k for k in logged.keys if has_number(run, k)])


def _metric_rank(key: str) -> tuple[int, int, int] | None:
    """Lower comes first; None for what is no measure of quality."""
    words = names.parts(key)
    if key.startswith("_") or names.rate_of(key) or names.memory_of(key) or not words:
        return None
    last = names.parts(names.last_part(key))
    if set(last) & _AFTERTHOUGHTS and not says_accuracy(key) and "loss" not in last:
        return None
    direction = says_direction(key)
    if direction is None:
        return None
    kind = 0 if says_accuracy(key) else 1 if direction == "maximize" else 2
    where = 0 if set(words) & names.EVALUATION else 2 if set(words) & names.TRAINING else 1
    return where, kind, sum((word.isdigit() and int(word[:9]) >= _RANKED) or word == "top5" for word in words)


def guess_rate(logged: Logged) -> str | None:
    """The key of a throughput of training, samples before steps; None where there is none. How long an epoch
    took is not taken by guess: nobody says whether its evaluation is in it.
    """
    order = [
        "samples/s",
        "images/s",
        "tokens/s",
        "sequences/s",
        "frames/s",
        "words/s",
        "",
        "batches/s",
        "steps/s",
    ]

    def rank(key: str) -> tuple[int, int]:
        unit, divisor = names.rate_of(key) or ("", 0.0)
        return (1 if divisor else 0, order.index(unit) if unit in order else len(order))

    rates = [
        k for k in logged.keys if names.rate_of(k) not in (None, ("epochs/s", 1.0), ("epochs/s", 1000.0))
    ]
    fitting = [k for k in rates if not set(names.parts(k)) & names.EVALUATION]
    return logged.best(fitting, rank)


def guess_memory(logged: Logged) -> str | None:
    """The key of the GPU's memory, a peak before what is in use, allocated before reserved."""

    def rank(key: str) -> tuple[bool, bool, bool]:
        words = set(names.parts(key))
        is_gpu = bool(words & {"gpu", "cuda", "vram", "device"})
        return not is_gpu, not words & {"peak", "max"}, bool(words & {"reserved", "cpu", "ram", "cached"})

    fitting = [k for k in logged.keys if names.memory_of(k) and not k.startswith("_")]
    return logged.best(fitting, rank)


def whose(runs: Sequence[RunRecord]) -> str:
    """The runs by name, for a sentence."""
    return some([printable(run.name) for run in runs])
