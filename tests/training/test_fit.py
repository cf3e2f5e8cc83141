"""Rows that are read an interval late say the same as those read at once, none is lost; how a run ends."""

import os
import traceback
from pathlib import Path
from types import CodeType
from typing import Any

import pytest
import torch
from support.properties import backends
from support.training import StopWhen, fit, timeless
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from ampcompare import metrics
from ampcompare.errors import TrainingError
from ampcompare.precision import REGISTRY
from ampcompare.system.distributed import DistributedContext

SHORT = ("data.train_limit=32", "epochs=2", "log.every=3")  # 4 steps an epoch


def steps_of(rows: list[dict[str, Any]], key: str = metrics.LOSS) -> list[int]:
    return [row[metrics.STEP] for row in rows if key in row]


@backends(REGISTRY)
def test_late_rows_are_the_same_rows_in_the_same_order(backend: str):
    words = (*SHORT, f"backend={backend}", "diagnostics.every=2", "training.clip_norm=1", "epochs=3")
    if REGISTRY[backend].scales:  # so that steps are skipped
        words += ("precision.init_scale=16777216",)
    found = {}
    for lag in (False, True):
        made, rows = fit(*words, lag=lag)
        found[lag] = made.run()[metrics.BEST_ACCURACY], str(timeless(rows))  # as text: nan is not nan
    assert found[True] == found[False]


def test_a_late_row_still_names_the_step_whose_loss_is_not_finite():
    words = ("optimizer.lr=1e30", "log.every=4", "data.train_limit=128")
    problems = []
    for lag in (False, True):
        made, rows = fit(*words, lag=lag)
        with pytest.raises(TrainingError, match=r"try a smaller optimizer\.lr or") as caught:
            made.run()
        problems.append(str(caught.value))
        # One interval later; the row that shows it is kept, and with lag that of the interval after.
        assert (made.step, steps_of(rows)) == ((8, [4, 8]) if lag else (4, [4]))
    assert problems[0] == problems[1]


@pytest.mark.parametrize("lag", [False, True])
def test_a_run_that_is_stopped_hands_out_the_row_that_waits(lag: bool):
    def stop(step: int) -> None:
        if step == 7:
            raise KeyboardInterrupt

    made, rows = fit(*SHORT, lag=lag, on_step=stop)
    with pytest.raises(KeyboardInterrupt):
        made.run()
    assert steps_of(rows) == [3, 4, 6]


class AsTwo(DistributedContext):
    """As if another process had the same numbers."""

    def sum_(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor.mul_(2)

    def start_max_(self, tensor: torch.Tensor) -> torch.futures.Future[None]:
        done: torch.futures.Future[None] = torch.futures.Future()
        done.set_result(None)
        return done

    def gather(self, word: Any) -> list[Any]:
        return [None, word]

    def broadcast_buffers(self, model: torch.nn.Module) -> None: ...


@pytest.mark.parametrize("world", [DistributedContext(), AsTwo(size=2)])
def test_a_stop_request_in_an_evaluation_ends_it_in_all_processes(world: DistributedContext):
    stop = StopWhen(lambda: not made.trainer.model.training)
    made, rows = fit(*(*SHORT, "log.every=1000"), stop=stop)  # an interval longer than the run
    made.world = world
    made.run()
    assert (made.stopped, made.evaluated, made.step) == (True, False, 4)
    assert stop.agreed == [stop.exit_code]
    assert (steps_of(rows), steps_of(rows, metrics.EVAL_LOSS)) == ([4], [])


def test_milestones_are_in_epochs_whatever_the_number_of_steps():
    words = ("schedule.name=multistep", "schedule.milestones=[1,2.5]", "schedule.gamma=0.5")
    made, rows = fit(*SHORT, *words, "optimizer.lr=0.08", "epochs=4", "log.every=1")
    made.run()
    # The rate of a row is the one that its last step was taken with.
    expected = [0.08 * 0.5 ** ((step >= 4) + (step >= 10)) for step in range(16)]
    rates = [row[metrics.LEARNING_RATE] for row in rows if metrics.LEARNING_RATE in row]
    assert rates == pytest.approx(expected)


@pytest.mark.parametrize("better", ["higher", "lower"])
def test_the_best_value_follows_the_direction_of_the_metric(tmp_path: Path, better: str):
    (tmp_path / "own.py").write_text(f"def mine(o, t):\n    return o.square()\nmine.better = '{better}'\n")
    metric = f"{tmp_path}/own.py:mine"
    words = (f"task.metrics=[{metric}]", f"task.metric={metric}", "epochs=5", "optimizer.lr=0.5")
    made, rows = fit(*SHORT, *words)
    found = made.run()
    values = [row["eval/mine"] for row in rows if "eval/mine" in row]
    best = (max if better == "higher" else min)(values)
    assert (found["best/eval_mine"], found[metrics.BEST_EPOCH]) == (best, values.index(best) + 1)


# On a device without float64, as MPS is.


class OriginsOfFloat64(TorchDispatchMode):
    """Collects the functions of the package that make float64 tensors of tensors that are not."""

    def __init__(self) -> None:
        super().__init__()
        self.functions: set[CodeType] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        is_number = func is torch.ops.aten.scalar_tensor.default  # a Python number beside a tensor
        if has_float64_tensor(result) and not has_float64_tensor((args, kwargs)) and not is_number:
            codes = (frame.f_code for frame, _ in traceback.walk_stack(None))
            self.functions.add(
                next(code for code in codes if f"{os.sep}ampcompare{os.sep}" in code.co_filename)
            )
        return result


def has_float64_tensor(values: Any) -> bool:
    return any(isinstance(x, torch.Tensor) and x.dtype == torch.float64 for x in tree_leaves(values))


def test_a_training_makes_float64_only_where_it_asks_for_the_widest_type_of_the_device():
    """One with rows, gradients looked at, and evaluations. A device such as MPS has no float64."""
    with OriginsOfFloat64() as origins:
        made, rows = fit("backend=native_bf16", "training.clip_norm=5", "log.every=2")
        made.run()
    assert origins.functions
    for code in origins.functions:
        assert {"wide", "widest_float"} & {*code.co_names, *code.co_varnames, *code.co_freevars}, code
    logged = set().union(*rows)
    assert {"train/loss", "eval/accuracy", "grad/underflow_fraction", "grad/exponents", "grad/norm"} <= logged
