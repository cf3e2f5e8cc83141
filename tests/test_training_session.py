"""Several training sessions in one process, one after the other."""

import io
import signal
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console
from support.hooks import before_forward
from support.quick import DROPOUT, QUICK
from support.same_run import end_of
from support.training import play

from ampcompare.config.load import load_config
from ampcompare.errors import UserError
from ampcompare.experiment import RunResult, TrainingSession
from ampcompare.runtime.signals import StopRequest
from ampcompare.system.distributed import DistributedContext
from ampcompare.training.checkpoint.store import CheckpointStore

WORLD = DistributedContext()
SAVES = ("checkpoint.every_epochs=1", "resume=auto")


def session_of(folder: Path, *words: str, **options: Any) -> TrainingSession:
    config = load_config(None, [*QUICK, *SAVES, DROPOUT, *words, f"output_dir={folder}"])
    return TrainingSession(config, WORLD, Console(file=io.StringIO()), **options)


def run_session(folder: Path, *words: str, **options: Any) -> RunResult:
    with session_of(folder, *words, **options) as session:
        session.prepare()
        session.start()
        session.resume()
        session.train()
        return session.finish()


@contextmanager
def refused_record() -> Iterator[None]:
    """Return a context in which W&B refuses a setting."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("WANDB_FINISH_TIMEOUT", "soon")
        yield


def broken_step() -> AbstractContextManager[None]:
    """Return a context in which a step raises, within the network."""

    def fail(network: torch.nn.Module, images: torch.Tensor) -> None:
        if network.training:
            raise ZeroDivisionError

    return before_forward(fail)


@pytest.mark.parametrize(
    ("fault", "error"),
    [(refused_record, UserError), (broken_step, ZeroDivisionError)],
    ids=["record", "step"],
)
def test_a_session_that_fails_leaves_nothing_locked_and_no_handlers(
    tmp_path: Path, fault: Callable[[], AbstractContextManager[None]], error: type[Exception]
):
    play(*SAVES, DROPOUT, f"output_dir={tmp_path}", until=6)  # has a checkpoint at step 4
    handlers = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    with fault(), pytest.raises(error) as raised:
        run_session(tmp_path)
    assert {number: signal.getsignal(number) for number in handlers} == handlers
    (folder,) = (tmp_path / "checkpoints").iterdir()
    assert CheckpointStore(folder).lock(), raised  # the exception still holds the session
    CheckpointStore(folder).unlock()


def test_a_session_whose_request_was_made_before_trains_nothing_and_the_next_resumes(tmp_path: Path):
    stop = StopRequest()
    stop.request("SIGTERM", signal.SIGTERM)
    assert run_session(tmp_path, stop=stop).exit_code == 143
    assert not list(tmp_path.rglob("*.pt"))
    assert run_session(tmp_path).exit_code == 0
    assert end_of(tmp_path)["step"] == 8
