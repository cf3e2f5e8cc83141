"""What formats of other programs declare of their keys, so that the user need not name it.

It is the metric with its direction, the steps, and whether a time is that of one step or one since the start.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from ampcompare import metrics
from ampcompare.analysis.grouping.compared_metric import MAXIMIZE, MINIMIZE, Unit
from ampcompare.analysis.grouping.logged_keys import is_logged
from ampcompare.runs import RunRecord
from ampcompare.runs.metric_definitions import definition_of
from ampcompare.runs.run_record import TIMESTAMP
from ampcompare.runs.step_keys import EPOCH_KEYS, OWN_STEP, STEP_KEYS

BEST_MODEL, GREATER = "metric_for_best_model", "greater_is_better"  # Hugging Face's TrainingArguments
TIMM = "eval_top1"  # timm's summary, in percent
EACH, CUMULATIVE = "each", "cumulative"  # a time of one step or epoch, and one that counts from the start
WANDB_CLOCKS = ("_runtime", TIMESTAMP)
ULTRALYTICS = ["epoch", "time"]  # the first columns of its results.csv; save_metrics() in engine/trainer.py
# The first columns of the history.csv of fastai's CSVLogger, whose last is `time`: that of one epoch, in
# whole seconds; after_epoch() of Recorder in fastai/learner.py
FASTAI = ["epoch", "train_loss", "valid_loss"]
MMENGINE = "vis_data"  # the folder of its scalars.json; IterTimerHook in mmengine/hooks
MMCV = ".log.json"  # the end of the file name of TextLoggerHook
ITERATION_TIMES = ("time", "data_time")  # of both
# One value for each call of train() or evaluate(); speed_metrics() in transformers/trainer_utils.py
HUGGING_FACE = ("train_runtime", "eval_runtime")
HUGGING_FACE_FILE = "trainer_state.json"


@dataclass(frozen=True)
class DeclaredMetric:
    """A declared metric.

    Attributes:
        goal: `maximize` or `minimize`, "" if only the key is declared.
        unit: The unit of its values, None if it is not declared.
    """

    key: str
    goal: str = ""
    unit: Unit | None = None


def declared_goal(key: str, runs: Sequence[RunRecord]) -> str:
    """Return the goal that the runs declare of a key, "" where they do not, or declare different ones."""
    goals = {metric.goal for run in runs for metric in _declared_by(run) if metric.key == key}
    goals |= {definition_of(key, run.definitions).goal for run in runs}
    goals.discard("")
    return goals.pop() if len(goals) == 1 else ""


def chosen_metric(runs: Sequence[RunRecord]) -> DeclaredMetric | None:
    """Return the one metric with a goal that all runs declare; None if several are equally likely.

    Selected metrics come first: a sweep's metric, that of Hugging Face's best model, and timm's accuracy. Of
    metrics with a goal from W&B's `define_metric`, there must be one.
    """
    first, *others = [[*_declared_by(run)] for run in runs]
    shared = dict.fromkeys(metric for metric in first if all(metric in own for own in others))
    with_goal = [metric for metric in shared if metric.goal and is_logged(metric.key, runs)]
    defined_keys = {name for run in runs for name in run.definitions}
    selected = [metric for metric in with_goal if metric.key not in defined_keys]
    if not selected and len(with_goal) > 1:
        return None
    return next(iter(selected or with_goal), None)


def _declared_by(run: RunRecord) -> Iterator[DeclaredMetric]:
    if run.objective is not None:
        yield DeclaredMetric(*run.objective)
    yield from _best_model_metric(run)
    if TIMM in run.logged and any(path.suffix.lower() == ".csv" for path in run.paths):
        yield DeclaredMetric(TIMM, MAXIMIZE, Unit.PERCENT)
    for key, definition in run.definitions.items():
        if definition.goal and "*" not in key:
            yield DeclaredMetric(key, definition.goal)


def _best_model_metric(run: RunRecord) -> Iterator[DeclaredMetric]:
    """Yield the metric by which Hugging Face's Trainer chooses the best model, if the run logged it."""
    name = run.option(BEST_MODEL)
    if not isinstance(name, str) or not name:
        return
    goal = ""
    greater = run.option(GREATER)
    if isinstance(greater, bool):
        goal = MAXIMIZE if greater else MINIMIZE
    bare = name.removeprefix("eval_")
    for key in (f"eval/{bare}", f"eval_{bare}", name):
        if key in run.logged:
            yield DeclaredMetric(key, goal)
            return


def declared_kind(key: str, run: RunRecord) -> str:
    """Return EACH or CUMULATIVE for a time whose kind the format of a run declares, "" for any other key."""
    if key in WANDB_CLOCKS or (key == "time" and _is_of_ultralytics(run)):
        return CUMULATIVE
    is_of_mm = any(MMENGINE in path.parts or path.name.endswith(MMCV) for path in run.paths)
    is_iteration = is_of_mm and key in ITERATION_TIMES
    is_call = key in HUGGING_FACE and any(path.name == HUGGING_FACE_FILE for path in run.paths)
    return EACH if is_iteration or is_call or (key == "time" and _is_of_fastai(run)) else ""


def _is_of_ultralytics(run: RunRecord) -> bool:
    """Return whether a run was read from Ultralytics' results.csv, by the names and places of its columns."""
    names = list(run.logged)
    has_losses = any(name.startswith("train/") and name.endswith("loss") for name in names)
    has_results = any(name.startswith(("metrics/", "lr/pg")) for name in names)
    return names[:2] == ULTRALYTICS and has_losses and has_results


def _is_of_fastai(run: RunRecord) -> bool:
    """Return whether a run was read from the file of fastai's CSVLogger."""
    names = [name for name in run.logged if name != metrics.STEP]  # the reader adds the step at the end
    times = run.values("time")
    is_file = any(path.name == "history.csv" for path in run.paths)
    return is_file and names[:3] == FASTAI and names[-1] == "time" and bool((times == np.round(times)).all())


def is_step_column(key: str, runs: Sequence[RunRecord]) -> bool:
    """Return whether a logged key counts steps: no metric to compare.

    It has the name of a step, is declared as the step of a metric, or has the values of the step.
    """
    if key in STEP_KEYS or key in EPOCH_KEYS or key == OWN_STEP:
        return True
    if any(definition.step == key for run in runs for definition in run.definitions.values()):
        return True
    with_values = [run for run in runs if len(run.values(key))]
    return bool(with_values) and all(
        np.array_equal(run.numbers(key), run.numbers(metrics.STEP), equal_nan=True) for run in with_values
    )
