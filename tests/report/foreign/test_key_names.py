"""What the name of a key says: a rate, memory, a seed, a place, a precision, which way is better."""

from __future__ import annotations

import pytest

from ampcompare.report.foreign import names
from ampcompare.report.runs.metric import says_direction


def speed(name):
    found = names.speed_of(name)
    return (found.unit, found.factor if found.is_duration else 0) if found else None


def memory(name):
    found = names.memory_of(name)
    return (found.unit, found.factor) if found else None


# Under what each name says, the names; of the duration of a step also what divides to steps a second.
RATES = {
    ("samples/s", 0): "samples_per_sec train/train_samples_per_second throughput/device/samples_per_sec",
    ("images/s", 0): "images/s img_s images_sec",
    ("tokens/s", 0): "tokensPerSecond perf.tok_per_s",
    ("steps/s", 0): "train_steps_per_second perf/it/s it_per_sec step/s steps_s it_s",
    ("frames/s", 0): "fps",
    ("", 0): "throughput",
    ("steps/s", 1000): "step_time_ms ms_per_step it_ms",
    (
        "steps/s",
        1,
    ): """time/step_time sec_per_it batch_time step_seconds train/step_s iteration_s
    batch_seconds step/seconds""",
    ("epochs/s", 1): "epoch_seconds",
    None: """data_wait_seconds data_time_per_batch init_seconds commit_s trainer/global_step step batch
    train_loss_step samples batch_size _step eval_time""",
}
MEMORY = {
    ("", 1.0): "gpu_mem",
    ("MiB", 1 / 2**20): "max_memory_allocated_bytes",
    ("MiB", 1.0): "mem/peak_mib peak_memory_MiB",
    ("MiB", 1e9 / 2**20): "gpu_memory_gb",
    ("MiB", 1024.0): "vram_gib memory/max_active(GiB)",
    None: "memory_format mem_len gpu/mem_used_frac memory_percent gpu_mem_util remember loss",
}
SEEDS = {
    True: "seed random_seed trainer.data_seed np-seed cfg/seed random_state",
    False: "seed_model seed_checkpoint seeded seedling_rate lr num_seed_points",
}
LABELS = {
    True: """output_dir logging_dir run_name name ckpt_dir out wandb.name trainer.log_dir hostname timestamp
    git_commit tags experiment.id save_folder output experiment default_root_dir""",
    False: """model.name optimizer.name data_dir dataset_path model_name_or_path lr group_norm log_softmax
    output_size optimizer.type out_channels activation file_type checkpoint ckpt_path""",
}
PRECISION = {True: "trainer.precision fp16 bf16 use_amp torch_dtype mixed_precision"}
FULL = {
    True: """32 32-true fp32 torch.float32 no none False float32 32.0 null DataType.FP32 Precision.FULL
    jax.numpy.float32""",
    False: "16-mixed bf16 bf16-true True float16 64 tf32 fp32-mixed 16.0",
}
BETTER = {
    "maximize": """val_acc valAcc Accuracy/test val/f1_macro sentiment_acc val_auc bleu neg_mean_squared_error
    val/neg_loss negative_loss mIoU val/meanIoU IoU metrics/mAP50(B) metrics/mAP50-95(B) trueNegativeRate""",
    "minimize": """val_loss Loss/test perplexity val_wer top1_error acc/loss eval/loss val/nll
    negative_log_likelihood neg_acc bits_per_byte val_fpr fnr miss_rate EER false_negative_rate""",
    None: "val_foo epoch",
}


@pytest.mark.parametrize(
    ("reads", "table"),
    [
        (speed, RATES),
        (memory, MEMORY),
        (names.is_seed, SEEDS),
        (names.label_kind, LABELS),
        (names.says_precision, PRECISION),
        (names.is_full_precision, FULL),
        (says_direction, BETTER),
    ],
    ids=["rate", "memory", "seed", "label", "precision", "full precision", "better"],
)
def test_a_name_says_what_it_means(reads, table, subtests: pytest.Subtests):
    for meaning, every in table.items():
        for name in every.split():
            with subtests.test(name=name):
                found = reads(name)
                assert (bool(found) if isinstance(meaning, bool) else found) == meaning


def test_full_precision_is_told_by_values_of_several_words_too():
    assert all(names.is_full_precision(value) for value in ("fp32 (default)", "not set", ""))
    assert not names.is_full_precision("fp32 by bf16x3")
