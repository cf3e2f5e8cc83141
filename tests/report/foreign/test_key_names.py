"""What the name of a key says: a rate, memory, a seed, a place, a precision, which way is better."""

from __future__ import annotations

from ampcompare.report.foreign import names
from ampcompare.report.runs.metric import Unit, says_direction, unit_of


def test_a_rate_and_a_duration_of_a_step_are_told_from_their_names():
    table = [
        ("samples_per_sec", "samples/s", 0),
        ("train/train_samples_per_second", "samples/s", 0),
        ("throughput/device/samples_per_sec", "samples/s", 0),
        ("images/s", "images/s", 0),
        ("img_s", "images/s", 0),
        ("tokensPerSecond", "tokens/s", 0),
        ("perf.tok_per_s", "tokens/s", 0),
        ("train_steps_per_second", "steps/s", 0),
        ("perf/it/s", "steps/s", 0),
        ("it_per_sec", "steps/s", 0),
        ("fps", "frames/s", 0),
        ("throughput", "", 0),
        ("step_time_ms", "steps/s", 1000),
        ("time/step_time", "steps/s", 1),
        ("sec_per_it", "steps/s", 1),
        ("ms_per_step", "steps/s", 1000),
        ("batch_time", "steps/s", 1),
        ("step_seconds", "steps/s", 1),
        ("train/step_s", "steps/s", 1),
        ("iteration_s", "steps/s", 1),
        ("batch_seconds", "steps/s", 1),
        ("it_ms", "steps/s", 1000),
        ("step/seconds", "steps/s", 1),
        ("step/s", "steps/s", 0),
        ("steps_s", "steps/s", 0),
        ("it_s", "steps/s", 0),
        ("images_sec", "images/s", 0),
        ("epoch_seconds", "epochs/s", 1),
        ("data_wait_seconds", None, 0),
        ("data_time_per_batch", None, 0),
        ("init_seconds", None, 0),
        ("commit_s", None, 0),
        ("trainer/global_step", None, 0),
        ("step", None, 0),
        ("batch", None, 0),
        ("train_loss_step", None, 0),
        ("samples", None, 0),
        ("batch_size", None, 0),
        ("_step", None, 0),
        ("eval_time", None, 0),
    ]
    assert not [
        (key, unit, divisor)
        for key, unit, divisor in table
        if names.rate_of(key) != (None if unit is None else (unit, divisor))
    ]


def test_memory_is_told_from_its_name_with_its_unit():
    table = [
        ("gpu_mem", ("", 1.0)),
        ("max_memory_allocated_bytes", ("MiB", 1 / 2**20)),
        ("mem/peak_mib", ("MiB", 1.0)),
        ("gpu_memory_gb", ("MiB", 1e9 / 2**20)),
        ("vram_gib", ("MiB", 1024.0)),
        ("memory/max_active(GiB)", ("MiB", 1024.0)),
        ("peak_memory_MiB", ("MiB", 1.0)),
        ("memory_format", None),
        ("mem_len", None),
        ("gpu/mem_used_frac", None),
        ("memory_percent", None),
        ("gpu_mem_util", None),
        ("remember", None),
        ("loss", None),
    ]
    assert not [(key, found) for key, found in table if names.memory_of(key) != found]


def test_seeds_are_known_however_deep():
    table = ["seed", "random_seed", "trainer.data_seed", "np-seed", "cfg/seed", "random_state"]
    assert not [key for key in table if not names.is_seed(key)]


def test_what_only_sounds_like_a_seed_is_a_setting():
    table = ["seed_model", "seed_checkpoint", "seeded", "seedling_rate", "lr", "num_seed_points", ""]
    assert not [key for key in table if names.is_seed(key)]


def test_names_and_places_of_a_run_are_known_by_their_key():
    table = """
    output_dir logging_dir run_name name ckpt_path out wandb.name trainer.log_dir hostname timestamp
    git_commit tags experiment.id save_folder default_root_dir
    """.split()
    assert not [key for key in table if not names.is_label(key)]


def test_settings_of_a_training_are_no_names_of_a_run():
    table = """
    model.name optimizer.name data_dir dataset_path model_name_or_path lr group_norm log_softmax output_size
    optimizer.type out_channels activation file_type
    """.split()
    assert not [key for key in table if names.is_label(key)]


def test_settings_of_the_precision_are_known():
    table = ["trainer.precision", "fp16", "bf16", "use_amp", "torch_dtype", "mixed_precision"]
    assert not [key for key in table if not names.says_precision(key)]


def test_full_precision_is_known_by_its_value():
    table = """
    32 32-true fp32 torch.float32 no none False float32 32.0 null DataType.FP32 Precision.FULL
    jax.numpy.float32
    """.split()
    assert not [value for value in table if not names.is_full_precision(value)]


def test_what_nobody_set_is_full_precision():
    table = ["fp32 (default)", "not set", ""]
    assert not [value for value in table if not names.is_full_precision(value)]


def test_other_precisions_are_not_taken_for_full():
    table = [
        "16-mixed",
        "bf16",
        "bf16-true",
        "True",
        "float16",
        "64",
        "tf32",
        "fp32-mixed",
        "fp32 by bf16x3",
        "16.0",
    ]
    assert not [value for value in table if names.is_full_precision(value)]


def test_which_way_is_better_is_told_by_the_name_or_not_at_all():
    table = [
        ("val_acc", "maximize"),
        ("valAcc", "maximize"),
        ("Accuracy/test", "maximize"),
        ("val/f1_macro", "maximize"),
        ("sentiment_acc", "maximize"),
        ("val_auc", "maximize"),
        ("bleu", "maximize"),
        ("val_loss", "minimize"),
        ("Loss/test", "minimize"),
        ("perplexity", "minimize"),
        ("val_wer", "minimize"),
        ("top1_error", "minimize"),
        ("acc/loss", "minimize"),
        ("eval/loss", "minimize"),
        ("neg_mean_squared_error", "maximize"),
        ("val/neg_loss", "maximize"),
        ("negative_loss", "maximize"),
        ("val/nll", "minimize"),
        ("negative_log_likelihood", "minimize"),
        ("neg_acc", "minimize"),
        ("mIoU", "maximize"),
        ("val/meanIoU", "maximize"),
        ("IoU", "maximize"),
        ("metrics/mAP50(B)", "maximize"),
        ("metrics/mAP50-95(B)", "maximize"),
        ("bits_per_byte", "minimize"),
        ("val_fpr", "minimize"),
        ("fnr", "minimize"),
        ("miss_rate", "minimize"),
        ("EER", "minimize"),
        ("false_negative_rate", "minimize"),
        ("trueNegativeRate", "maximize"),
        ("val_foo", None),
        ("epoch", None),
    ]
    assert not [(key, goal) for key, goal in table if says_direction(key) != goal]


def test_an_accuracy_is_told_by_its_name_and_values():
    table = [
        ("val/acc", (0.2, 0.9), Unit.FRACTION),
        ("valAcc", (20.0, 90.0), Unit.PERCENT),
        ("acc/loss", (0.2, 0.9), Unit.PLAIN),
        ("val/f1", (0.2, 0.9), Unit.PLAIN),
    ]
    assert not [(key, values, unit) for key, values, unit in table if unit_of(key, values) is not unit]
