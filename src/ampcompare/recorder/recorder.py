"""A training loop of one's own, recorded and measured as ours is: `from ampcompare import Recorder`."""

from __future__ import annotations

import atexit
import os
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any

from rich.console import Console
from torch import nn

from ampcompare import metrics
from ampcompare.config.beside import WandbConfig
from ampcompare.config.schema import LogConfig
from ampcompare.errors import UserError
from ampcompare.machine.device import Memory, is_host
from ampcompare.machine.world import World, this_world
from ampcompare.measure.timing import StepTimer
from ampcompare.program.console import print_line
from ampcompare.recorder.begin import about, device_of, start, type_of, word_of
from ampcompare.recorder.checks import check_count, check_parts
from ampcompare.recorder.course import Course
from ampcompare.recorder.ending import WARNINGS, Ending, end
from ampcompare.recorder.energy import StepEnergy
from ampcompare.recorder.gradients import Looks, bare
from ampcompare.recorder.scaling import scaling_of
from ampcompare.train.buffers import Buffers
from ampcompare.train.clock import Clock
from ampcompare.train.rows import Advice, Rows

ADVICE = Advice(
    scale="a smaller learning rate, clipping of the gradients, or bfloat16, which needs no loss scale",
    buffers="To mend that, keep a copy of them and put it back after a skipped step",
)


class Recorder(Course):
    """Records a loop under the names of `ampcompare.metrics`, so that the report compares it as our own runs.

    `backend` is what is compared, `seed` what runs are paired by; both and `batch_size` go into the record's
    config beside `config`, whatever else tells runs apart. `scaler` is what scales the loss: a GradScaler, a
    backend of ours, Lightning's precision plug-in, an Accelerator; `optimizer` gives learning rate and
    gradients, `model` names layers and has its buffers watched. Rows go into the open W&B `run`, which is not
    ended here, or into one that is begun and ended.

    A row comes each `every` steps; the first `warmup_steps` are in no throughput. Each `diagnostics` steps
    the gradients are looked at. `processes` is by how many the samples of a step are multiplied: as many as
    torch.distributed has; process 0 alone records, and the loss is its own. `test_samples` is how many an
    evaluation is of. A loop that goes on from a checkpoint says as `start_step` how many steps it has done;
    under the same WANDB_RUN_ID the parts are one record.

    `step` waits for nothing. It is an optimizer's step: with micro-batches to be called once, behind the last
    one and `scaler.update()`. Gradients are looked at where the optimizer takes them, after clipping, so
    `zero_grad` may stand anywhere. SIGTERM, SIGHUP, SIGUSR1 and SIGUSR2 end loop and record by `sys.exit`,
    unless the program has a handler for them. Raises UserError for what cannot be.

    >>> model = torch.nn.Linear(4, 1)
    >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    >>> with Recorder(backend="none", seed=3, batch_size=8, optimizer=optimizer) as record:  # doctest: +SKIP
    ...     for x in torch.randn(20, 8, 4):
    ...         loss = model(x).square().mean()
    ...         loss.backward()
    ...         optimizer.step()
    ...         optimizer.zero_grad()
    ...         record.step(loss=loss, samples=len(x))
    ...     record.evaluate(loss=loss)
    """

    def __init__(
        self,
        *,
        backend: str | None = None,
        seed: int | None = None,
        batch_size: int | None = None,
        scaler: Any = None,
        optimizer: Any = None,
        model: nn.Module | None = None,
        run: Any = None,
        config: Mapping[str, Any] | None = None,
        precision_dtype: Any = None,
        device: Any = None,
        every: int = LogConfig.every,
        warmup_steps: int = LogConfig.warmup_steps,
        diagnostics: int | None = None,
        processes: int | None = None,
        start_step: int = 0,
        test_samples: int | None = None,
        project: str = WandbConfig.project,
        name: str | None = None,
        output_dir: str | Path = "runs",
        quiet: bool = False,
    ) -> None:
        every, warmup_steps = check_count("every", every, 1), check_count("warmup_steps", warmup_steps, 0)
        # Numbers that may be left out.
        batch_size, diagnostics, processes, test_samples = (
            None if value is None else check_count(key, value, 1)
            for key, value in (
                ("batch_size", batch_size),
                ("diagnostics", diagnostics),
                ("processes", processes),
                ("test_samples", test_samples),
            )
        )
        start_step = check_count("start_step", start_step, 0)
        seed = None if seed is None else check_count("seed", seed, 0)
        super().__init__(start_step)
        self._was_entered = False
        world = this_world()
        self.rank, size = world.rank, world.size
        self._alone = size == 1
        self.processes = size if processes is None else processes
        self._optimizer = bare(optimizer)
        check_parts(self._optimizer, model)
        if diagnostics is not None and self._optimizer is None:
            raise UserError(f"diagnostics={diagnostics}: there is no optimizer; give optimizer= as well")
        self._scaler, self._model, self._run, self._lent = scaler, model, run, run is not None
        self.device = device_of(device, scaler, self._optimizer, model)
        self._scaling = scaling_of(scaler, self.device)
        self._on_host = is_host(self.device)
        self._every, self._diagnostics = every, diagnostics
        self._warmup_steps, self._output_dir = warmup_steps, output_dir
        self._console = Console(highlight=False, quiet=quiet)
        self._wandb = WandbConfig(project=project, name=name)
        word = word_of(backend, scaler)
        own = {
            "backend": word,
            "seed": seed,
            "batch_size": batch_size,
            "log": {"every": every, "warmup_steps": warmup_steps},
            "diagnostics": {"every": diagnostics},
            "recorder": {"version": 1},  # by which the report knows such a run
        }
        scales = self._scaling.scales_dynamically()
        self._about = about(
            backend=word,
            dtype=type_of(precision_dtype, word, scaler, scales),
            device=self.device,
            processes=size,
            config=config or {},
            own=own,
            optimizer=self._optimizer,
            scaler=scaler,
            goes_on=start_step > 0,
        )
        self._about.facts[metrics.SKIPS_ARE] = self._scaling.skips_are
        if test_samples is not None:
            self._about.facts[metrics.TEST_IMAGES] = test_samples

    def __enter__(self) -> Recorder:
        """Begin the record, in the loop's own program."""
        self.begin()
        if not self.rank:
            self._ending.listen(WARNINGS)
        return self

    def begin(self) -> Recorder:
        """Begin the record, within somebody's trainer, to which a batch system's warnings are left up to the
        first step; `close` ends it.
        """
        if self.rank:
            return self
        if self._was_entered:
            raise UserError("Recorder: it has been entered before; make a new one for each run")
        if self._diagnostics is not None:  # first: it may refuse the parameters
            scale = self._scaling.scale_factor
            self._looks = Looks(self._optimizer, self._model, self._diagnostics, scale, self.steps)
        try:
            self._tracker = start(self._about, self._run, self._wandb, self._output_dir, self.say)
        except BaseException:
            self._close_looks()
            raise
        self._tracker.note(self._about.facts)
        self._memory, self._clock = Memory(self.device), Clock()
        self._timer = StepTimer(self.device, self._warmup_steps)
        self._energy = StepEnergy(self.device, self.say)
        buffers = None if self._model is None else Buffers(self._model, self.device, restores=False)
        self._rows = Rows(
            self._scaling,
            World(),
            clock=self._clock,
            memory=self._memory,
            buffers=buffers,
            on_row=self._tracker.log,
            on_note=self.say,
            on_bad_loss=lambda what, cause: self.say(f"{what}; {cause and cause + '; '}going on"),
            advice=ADVICE,
        )
        self._process, self._was_entered = os.getpid(), True
        self._ending = Ending()
        self._ending.listen()
        atexit.register(self._abandoned)
        self.resume()
        return self

    def say(self, line: str) -> None:
        """A line for the user."""
        print_line(self._console, line)

    def _abandoned(self) -> None:
        """The program ends and nobody has ended the record: a trainer does not tell of its exceptions."""
        asked = None if self._ending.asked is None else SystemExit(128 + self._ending.asked)
        with suppress(SystemExit):  # Python ends already, and would show it
            self.close(
                asked or getattr(sys, "last_value", None) or RuntimeError("the program ended within the loop")
            )

    def __exit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close(problem)

    def close(self, problem: BaseException | None = None) -> None:
        """End the record: as finished, or with the problem as failed or stopped (Ctrl-C, SIGTERM). The `with`
        does it; what has been ended stays so.
        """
        if self._rows is None or os.getpid() != self._process:  # a fork of the loop's process ends for itself
            return
        atexit.unregister(self._abandoned)
        with self._ending:
            try:
                self._end_rows(problem)
            except BaseException as second:  # of the device, or of W&B for an earlier row
                problem = second
                raise
            finally:
                rows, self._rows = self._entered("exit"), None
                summary = self._about.facts | rows.summary() | self._best()
                end(self._tracker, summary, problem, self._output_dir, self.say, lent=self._lent)
                self._ending.close()

    def _end_rows(self, problem: BaseException | None) -> None:
        rows = self._entered("exit")
        self._close_looks()
        if problem is not None:
            rows.flush_after(problem)
            return
        if len(rows.interval):
            self._close(rows, self._last_found)
        rows.read_all()  # sync: behind the last step
        if self.steps == self._began_at:
            self.say("no step was recorded: call record.step(...) behind each; the report counts no such run")

    def _close_looks(self) -> None:
        if self._looks:
            self._looks.close()
