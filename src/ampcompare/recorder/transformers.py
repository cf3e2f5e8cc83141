"""Hugging Face's Trainer under the recorder: `Trainer(..., callbacks=[RecorderCallback()])`."""

import sys
from typing import Any

from ampcompare.errors import UserError
from ampcompare.recorder.recorder import Recorder

try:
    from transformers import TrainerCallback
except ImportError:
    what = "ampcompare.recorder.transformers: transformers is not installed"
    raise UserError(f"{what}; pip install transformers accelerate") from None

PLAIN = {"torch.float32": "32-true", "torch.bfloat16": "bf16-true", "torch.float16": "16-true"}
TIMES = ("runtime", "_per_second", "_time")


class RecorderCallback(TrainerCallback):
    """Records `Trainer.train`. `options` are the Recorder's; what they leave out the trainer says: backend
    (fp16 or bf16 of its arguments, or the type of its weights), loss scale, optimizer, model, seed, batch
    size, an open W&B run, such as the trainer's own.

    The trainer tells the loss to its log alone, so rows with the loss are those of `logging_steps`.
    """

    def __init__(self, **options: Any) -> None:
        self._options = options
        self.record: Any = None

    def on_train_begin(self, args: Any, state: Any, control: Any, **given: Any) -> None:
        self.on_train_end(args, state, control, problem=RuntimeError("the training was begun anew"))
        weights = next((str(p.dtype) for p in given["model"].parameters()), "")
        mixed = "fp16-mixed" if args.fp16 else "bf16-mixed" if args.bf16 else ""
        told = {"backend": mixed or PLAIN.get(weights, weights), "model": given["model"], "seed": args.seed}
        told["optimizer"] = given.get("optimizer")
        told["scaler"] = getattr(told["optimizer"], "scaler", None)  # accelerate wraps the two together
        told["batch_size"] = args.per_device_train_batch_size
        told["run"] = getattr(sys.modules.get("wandb"), "run", None)
        told["start_step"] = state.global_step  # of a checkpoint
        self._step = args.train_batch_size * args.gradient_accumulation_steps
        data = getattr(given.get("train_dataloader"), "dataset", ())
        self._epoch = -(-len(data) // args.world_size) if hasattr(data, "__len__") else 0  # 0: not known
        self.record = Recorder(**told | self._options).begin()

    def on_epoch_begin(self, *_: Any, **given: Any) -> None:
        self._left = self._epoch or sys.maxsize

    def on_step_begin(self, *_: Any, **given: Any) -> None:
        if self.record.is_paused:
            self.record.resume()

    def on_step_end(self, args: Any, state: Any, control: Any, **given: Any) -> None:
        samples = max(1, min(self._step, self._left))  # the last one of an epoch may be short
        self._left -= samples
        self.record.step(samples=samples, epoch=state.epoch)

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
        self.record = None
