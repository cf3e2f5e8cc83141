"""Hugging Face's Trainer under the recorder: `Trainer(..., callbacks=[RecorderCallback()])`."""

import sys
from typing import Any

import torch

from ampcompare.errors import UserError
from ampcompare.recorder.recorder import Recorder

try:
    from transformers import TrainerCallback
except ImportError:
    what = "ampcompare.recorder.transformers: transformers is not installed"
    raise UserError(f"{what}; pip install transformers accelerate") from None

PLAIN = {"torch.float32": "32-true", "torch.bfloat16": "bf16-true", "torch.float16": "16-true"}
TIMES = ("runtime", "_per_second", "_time")


def _declared_metric(args: Any) -> dict[str, Any]:
    """Return the metric that the arguments declare, as options of the Recorder; nothing where they do not."""
    named, greater = args.metric_for_best_model, args.greater_is_better
    if not named or greater is None:
        return {}
    return {"metric": f"eval/{named.removeprefix('eval_')}", "better": "higher" if greater else "lower"}


class RecorderCallback(TrainerCallback):
    """Records `Trainer.train`. `options` are the Recorder's; what they leave out the trainer says: backend
    (fp16 or bf16 of its arguments, or the type of its weights), loss scale, optimizer, model, seed, batch
    size, the metric of `metric_for_best_model` with `greater_is_better`, an open W&B run, such as the
    trainer's own.

    The trainer tells the loss to its log alone, so rows with the loss are those of `logging_steps`.
    """

    def __init__(self, **options: Any) -> None:
        self._options = options
        self.record: Any = None
        self._recorder: Recorder | None = None  # that is to begin
        self._hook: Any = None
        self._samples = 0  # of the step

    def on_train_begin(self, args: Any, state: Any, control: Any, **given: Any) -> None:
        # With `auto_find_batch_size` the trainer begins again after it ran out of memory: an attempt.
        self.on_train_end(args, state, control, problem=KeyboardInterrupt("another batch size is tried"))
        weights = next((str(p.dtype) for p in given["model"].parameters()), "")
        mixed = "fp16-mixed" if args.fp16 else "bf16-mixed" if args.bf16 else ""
        told = {"backend": mixed or PLAIN.get(weights, weights), "model": given["model"], "seed": args.seed}
        told["optimizer"] = given.get("optimizer")
        told["scaler"] = getattr(told["optimizer"], "scaler", None)  # accelerate wraps the two together
        told["batch_size"] = args.per_device_train_batch_size
        told["run"] = getattr(sys.modules.get("wandb"), "run", None)
        told["start_step"] = state.global_step  # of a checkpoint
        if "metric" not in self._options:
            told |= _declared_metric(args)
        self._recorder = Recorder(**told | self._options)
        self._hook = given["model"].register_forward_pre_hook(self._count, with_kwargs=True)
        if not args.auto_find_batch_size:
            self._begin()

    def _begin(self) -> None:
        if self._recorder is not None:
            self.record, self._recorder = self._recorder.begin(), None

    def _count(self, model: Any, args: Any, kwargs: Any) -> None:
        """Count the samples of a forward in training: the trainer tells no callback of its batches."""
        if model.training:
            tensors = (x for x in (*args, *kwargs.values()) if isinstance(x, torch.Tensor) and x.ndim)
            self._samples += next((len(tensor) for tensor in tensors), 0)

    def on_step_begin(self, *_: Any, **given: Any) -> None:
        if self.record and self.record.is_paused:
            self.record.resume()

    def on_step_end(self, args: Any, state: Any, control: Any, **given: Any) -> None:
        self._begin()  # where a batch size was to be found, which fitted
        self.record.step(samples=max(1, self._samples), epoch=state.epoch)
        self._samples = 0

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **given: Any) -> None:
        if self.record and "loss" in (logs or {}):
            self.record.log(loss=logs["loss"])

    def on_evaluate(self, args: Any, state: Any, control: Any, metrics: Any = None, **given: Any) -> None:
        found = {k[5:]: v for k, v in (metrics or {}).items() if k[:5] == "eval_" and not k.endswith(TIMES)}
        if self.record:
            self.record.evaluate(**found)

    def on_save(self, *_: Any, **given: Any) -> None:
        if self.record:
            self.record.pause(since_step=True)

    def on_train_end(self, *_: Any, problem: BaseException | None = None, **given: Any) -> None:
        if self.record:
            self.record.close(problem)
        if self._hook is not None:
            self._hook.remove()
        self.record = self._recorder = self._hook = None
        self._samples = 0
