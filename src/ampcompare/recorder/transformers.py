"""The Recorder as a callback of Hugging Face's Trainer: `Trainer(..., callbacks=[RecorderCallback()])`."""

import sys
from collections.abc import Callable
from typing import Any

from ampcompare.errors import UserError
from ampcompare.recorder.arguments import find_number
from ampcompare.recorder.batch_size import count_batch_samples
from ampcompare.recorder.recorder import Recorder
from ampcompare.recorder.trainer_callback import TrainerCallbackBase, add_known, keep_training

try:
    from transformers import TrainerCallback
except ImportError:
    raise UserError(
        "ampcompare.recorder.transformers: transformers is not installed; "
        "install it with: pip install transformers accelerate"
    ) from None

PLAIN = {"torch.float32": "32-true", "torch.bfloat16": "bf16-true", "torch.float16": "16-true"}
TIMES = ("runtime", "_per_second", "_time")


def _read_declared_metric(args: Any) -> dict[str, Any]:
    """Return the metric that the trainer's arguments declare, as options of the Recorder."""
    if not args.metric_for_best_model or args.greater_is_better is None:
        return {}
    name = args.metric_for_best_model.removeprefix("eval_")
    return {"metric": f"eval/{name}", "better": "higher" if args.greater_is_better else "lower"}


def _name_backend(args: Any, model: Any) -> str:
    """Return the backend: that of the trainer's arguments, else the dtype of the trainable weights."""
    if args.fp16:
        return "fp16-mixed"
    if args.bf16:
        return "bf16-mixed"
    dtype = next((str(p.dtype) for p in model.parameters() if p.requires_grad), "")
    return PLAIN.get(dtype, dtype)


class RecorderCallback(TrainerCallbackBase, TrainerCallback):
    """Records `Trainer.train`.

    The trainer gives the loss to callbacks only every `logging_steps` steps, so these rows have it. What
    cannot be recorded is left out with one line; the callback never ends the training.

    Args:
        samples: Counts the samples of a batch. It is called once for each batch, with the keyword arguments
            of the model's forward as a dict, since the trainer does not give batches to callbacks. By default
            the DataLoader determines the samples: its batch size, and the rest of the data set in the last
            batch. Where it does not (an iterable data set, a batch sampler of your own), no throughput is
            recorded.
        **options: Options of the Recorder. By default they are taken from the trainer: backend (fp16 or
            bf16 in its arguments, or the dtype of the weights), loss scale, optimizer, model, seed, batch
            size, `metric_for_best_model` with `greater_is_better`, and the open W&B run, such as the
            trainer's own.
    """

    def __init__(self, samples: Callable[[Any], int] | None = None, **options: Any) -> None:
        super().__init__(samples, options)
        self._recorder: Recorder | None = None  # that has not begun
        self._hook: Any = None
        self._finished_batches: list[int | None] = []  # samples of the finished batches of this step
        self._samples_of_batch: int | None = None  # of the current one, as the user's function counts them

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Create the recorder with the trainer's settings, and begin the record."""
        # With `auto_find_batch_size` the trainer begins again after it has run out of memory.
        is_another_attempt = args.auto_find_batch_size and self.record is not None
        self._end(KeyboardInterrupt("another batch size is tried"))
        model = kwargs["model"]
        optimizer = kwargs.get("optimizer")
        batch_size = args.per_device_train_batch_size
        if args.auto_find_batch_size and state.train_batch_size:
            batch_size = state.train_batch_size // max(1, args.n_gpu)
        settings = {
            "backend": _name_backend(args, model),
            "seed": args.seed,
            "batch_size": batch_size,
            "scaler": getattr(optimizer, "scaler", None),  # accelerate wraps both
            "optimizer": optimizer,
            "model": model,
            "run": getattr(sys.modules.get("wandb"), "run", None),
            "start_step": state.global_step,  # not 0 after a checkpoint
        }
        if "metric" not in self.options:
            settings |= _read_declared_metric(args)
        self._recorder = self.make_recorder(settings)
        self._recorder.replaces_last = is_another_attempt
        if self.count is not None:
            self._hook = model.register_forward_pre_hook(self._count, with_kwargs=True)
        if not args.auto_find_batch_size:
            self._begin()

    @keep_training
    def _begin(self) -> None:
        recorder = self._recorder
        self._recorder = None
        if recorder is not None:
            self.record = recorder.begin()

    @keep_training
    def _count(self, model: Any, args: Any, kwargs: Any) -> None:
        """Count the samples of a batch at its first forward; a loss may need several."""
        if model.training and self._samples_of_batch is None:
            self._samples_of_batch = self.count_samples(kwargs or args[0])

    @keep_training
    def on_step_begin(self, *_: Any, **kwargs: Any) -> None:
        """Count training time again."""
        self._finished_batches = []
        self._samples_of_batch = None
        if self.record and self.record.is_paused:
            self.record.resume()

    @keep_training
    def on_substep_end(self, *_: Any, **kwargs: Any) -> None:
        """Take over the samples of a batch whose gradients are accumulated."""
        self._finish_batch()

    def _finish_batch(self) -> None:
        self._finished_batches.append(self._samples_of_batch)
        self._samples_of_batch = None

    @keep_training
    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Record a step."""
        self._begin()  # with `auto_find_batch_size` once a batch size has fitted
        self._finish_batch()
        if not self.record:
            return
        loader = kwargs.get("train_dataloader")
        epoch = state.epoch if _has_length(loader) else None  # else a fraction of `max_steps`
        samples = self._count_samples_of_step(loader, epoch)
        self.record.step(samples=samples, epoch=epoch)

    def _count_samples_of_step(self, loader: Any, epoch: float | None) -> int | None:
        """Return the samples of the step's batches, None where they are not known."""
        counts = self._finished_batches
        if self.count is None:
            end = 0 if epoch is None else round((epoch % 1 or 1.0) * len(loader))
            counts = [count_batch_samples(loader, index) for index in range(end - len(counts), end)]
            if None in counts:
                self.warn_of_samples()
        return add_known(counts)

    @keep_training
    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **kwargs: Any) -> None:
        """Record the loss."""
        loss = find_number((logs or {}).get("loss"))
        if self.record and loss is not None:
            self.record.log(loss=loss)

    @keep_training
    def on_evaluate(self, args: Any, state: Any, control: Any, metrics: Any = None, **kwargs: Any) -> None:
        """Record the metrics of an evaluation."""
        results = {key: value for key, value in (metrics or {}).items() if key.startswith("eval_")}
        scores = {key.removeprefix("eval_"): v for key, v in results.items() if not key.endswith(TIMES)}
        if self.record:
            self.evaluate(scores)

    @keep_training
    def on_save(self, *_: Any, **kwargs: Any) -> None:
        """Pause the training time."""
        if self.record:
            self.record.pause(since_step=True)

    def on_train_end(self, *_: Any, **kwargs: Any) -> None:
        """End the record."""
        self._end(None)

    def _end(self, problem: BaseException | None) -> None:
        if self._hook is not None:
            self._hook.remove()
        self._recorder = self._hook = None
        self._close(problem)

    @keep_training
    def _close(self, problem: BaseException | None) -> None:
        record = self.record
        self.record = None
        if record:
            record.close(problem)


def _has_length(loader: Any) -> bool:
    """Return whether a loader knows its number of batches: that of an iterable data set does not."""
    try:
        return len(loader) > 0
    except TypeError:
        return False
