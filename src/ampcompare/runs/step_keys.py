"""The names under which programs log the step and the epoch: one list, for records, tables and logs."""

from ampcompare import metrics

# The optimizer step, as our training, Lightning and Hugging Face's Trainer log it. W&B's own `_step`
# restarts in each part of a run that is recorded offline.
OPTIMIZER_STEPS = (metrics.STEP, "trainer/global_step", "train/global_step")
# The names that LLaMA-Factory, Ray Tune and Stable-Baselines3 use.
PROGRAMS_STEPS = ("current_steps", "training_iteration", "time/total_timesteps")
# The step by the formats' own names, the surest first.
STEP_KEYS = (*OPTIMIZER_STEPS, "step", "iteration", "iter", *PROGRAMS_STEPS)
OWN_STEP = "_step"  # W&B's own step: one per call of log(), or what log(step=...) passes
EPOCH_KEYS = (metrics.EPOCH, "train/epoch")
# The column of a table that counts its rows, the surest first.
STEP_COLUMNS = (*STEP_KEYS, OWN_STEP, metrics.EPOCH)
