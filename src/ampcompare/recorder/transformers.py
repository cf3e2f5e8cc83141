"""The Recorder as a callback of Hugging Face's Trainer: `Trainer(..., callbacks=[RecorderCallback()])`."""

import sys
from typing import Any

import torch

from ampcompare.errors import UserError
from ampcompare.recorder.recorder import Recorder

try:
    from transformers import TrainerCallback
except ImportError:
    message = "ampcompare.recorder.transformers: transformers is not installed"
    raise UserError(f"{message}; install it with: pip install transformers accelerate") from None

PLAIN = {"torch.float32": "32-true", "torch.bfloat16": "bf16-true", "torch.float16": "16-true"}
TIMES = ("runtime", "_per_second", "_time")


def _read_declared_metric(args: Any) -> dict[str, Any]:
    """Return the metric that the trainer's arguments declare, as options of the Recorder."""
    named, greater = args.metric_for_best_model, args.greater_is_better
    if not named or greater is None:
        return {}
    return {"metric": f"eval/{named.removeprefix('eval_')}", "better": "higher" if greater else "lower"}


class RecorderCallback(TrainerCallback):
    """Records `Trainer.train`.

    The trainer gives the loss to callbacks only every `logging_steps` steps, so these rows have it.

    Args:
        **options: Options of the Recorder. By default they are taken from the trainer: backend (fp16 or
            bf16 in its arguments, or the dtype of the weights), loss scale, optimizer, model, seed, batch
            size, `metric_for_best_model` with `greater_is_better`, and the open W&B run, such as the
            trainer's own.
    """

    def __init__(self, **options: Any) -> None:
        self._options = options
        self.record: Any = None
        self._recorder: Recorder | None = None  # that has not begun
        self._hook: Any = None
        self._samples = 0  # in the current step

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Create the recorder with the trainer's settings, and begin the record."""
        # With `auto_find_batch_size` the trainer begins again after it has run out of memory.
        self.on_train_end(args, state, control, problem=KeyboardInterrupt("another batch size is tried"))
        weights = next((str(p.dtype) for p in kwargs["model"].parameters() if p.requires_grad), "")
        mixed = "fp16-mixed" if args.fp16 else "bf16-mixed" if args.bf16 else ""
        settings = {
            "backend": mixed or PLAIN.get(weights, weights),
            "model": kwargs["model"],
            "seed": args.seed,
        }
        settings["optimizer"] = kwargs.get("optimizer")
        settings["scaler"] = getattr(settings["optimizer"], "scaler", None)  # accelerate wraps both
        settings["batch_size"] = args.per_device_train_batch_size
        settings["run"] = getattr(sys.modules.get("wandb"), "run", None)
        settings["start_step"] = state.global_step  # not 0 after a checkpoint
        if "metric" not in self._options:
            settings |= _read_declared_metric(args)
        self._recorder = Recorder(**settings | self._options)
        self._hook = kwargs["model"].register_forward_pre_hook(self._count, with_kwargs=True)
        if not args.auto_find_batch_size:
            self._begin()

    def _begin(self) -> None:
        if self._recorder is not None:
            self.record, self._recorder = self._recorder.begin(), None

    def _count(self, model: Any, args: Any, kwargs: Any) -> None:
        """Count the samples of a training forward, since callbacks do not get the batches."""
        if model.training:
            tensors = (x for x in (*args, *kwargs.values()) if isinstance(x, torch.Tensor) and x.ndim)
            self._samples += next((len(tensor) for tensor in tensors), 0)

    def on_step_begin(self, *_: Any, **kwargs: Any) -> None:
        """Count training time again."""
        if self.record and self.record.is_paused:
            self.record.resume()

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Record a step."""
        self._begin()  # with `auto_find_batch_size` once a batch size has fitted
        self.record.step(samples=max(1, self._samples), epoch=state.epoch)
        self._samples = 0

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **kwargs: Any) -> None:
        """Record the loss."""
        if self.record and "loss" in (logs or {}):
            self.record.log(loss=logs["loss"])

    def on_evaluate(self, args: Any, state: Any, control: Any, metrics: Any = None, **kwargs: Any) -> None:
        """Record the metrics of an evaluation."""
        values = {k[5:]: v for k, v in (metrics or {}).items() if k[:5] == "eval_" and not k.endswith(TIMES)}
        if self.record:
            self.record.evaluate(**values)

    def on_save(self, *_: Any, **kwargs: Any) -> None:
        """Pause the training time."""
        if self.record:
            self.record.pause(since_step=True)

    def on_train_end(self, *_: Any, problem: BaseException | None = None, **kwargs: Any) -> None:
        """End the record."""
        if self.record:
            self.record.close(problem)
        if self._hook is not None:
            self._hook.remove()
        self.record = self._recorder = self._hook = None
        self._samples = 0
