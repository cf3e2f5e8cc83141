"""What the name of a key says: a rate, memory, a seed, a place, full precision, which way is better."""

from dataclasses import replace
from itertools import cycle

import pytest
from support.foreign import FULL, several

from ampcompare import analyse_runs

RATES = {
    "(in samples/s)": "samples_per_sec train/train_samples_per_second throughput/device/samples_per_sec",
    "(in images/s)": "images/s img/sec",
    "(in tokens/s)": "tokensPerSecond perf.tok_per_s tps",
    "(in steps/s)": "train_steps_per_second perf/it/s it_per_sec step/s",
    "(in frames/s)": "fps",
    "(in its own unit)": "throughput",
    "of a step in ms, as steps/s": "step_time_ms ms_per_step it_ms",
    "of a step in seconds, as steps/s": "time/step_time sec_per_it batch_time step_seconds train/step_s",
    "": """data_wait_seconds data_time_per_batch init_seconds commit_s it_s steps_done batch train_loss_step
    samples eval_time epoch_seconds eval/samples_per_second""",
}
MEMORY = {
    "(in its own unit)": "vram mem",
    "(in MiB)": "memory_allocated_bytes mem/peak_mib peak_memory_MiB gpu_memory_gb memory/max_active(GiB)",
    "": "memory_format mem_len gpu/mem_used_frac memory_percent gpu_mem_util remember loss",
}
SEEDS = {
    3: "seed random_seed trainer.data_seed np-seed cfg/seed random_state",
    0: "seed_model seeded seedling_rate num_seed_points",
}
LABELS = {
    True: """output_dir logging_dir run_name name ckpt_dir wandb.name trainer.log_dir hostname timestamp tags
    git_commit experiment.id save_folder output experiment default_root_dir hydra.run.dir save_path""",
    False: """model.name optimizer.name data_dir dataset_path model_name_or_path group_norm log_softmax
    output_size optimizer.type out_channels drop_out activation file_type checkpoint ckpt_path""",
}
FULL_WORDS = (
    "32 32-true fp32 torch.float32 no none float32 32.0 DataType.FP32 Precision.FULL jax.numpy.float32"
)
OTHER_WORDS = "16-mixed bf16 double float16 16.0 half a-type"
BETTER = {
    False: """val_acc valAcc Accuracy/test val/f1_macro sentiment_acc val_auc bleu neg_mean_squared_error
    val/neg_loss mIoU metrics/mAP50-95(B) trueNegativeRate""",
    True: """val_loss Loss/test perplexity val_wer top1_error acc/loss val/nll negative_log_likelihood neg_acc
    bits_per_byte val_fpr miss_rate EER""",
}


def each(table, subtests: pytest.Subtests):
    for meaning, every in table.items():
        for name in every.split():
            with subtests.test(name=name):
                yield meaning, name


@pytest.mark.parametrize(
    ("what", "table", "own"), [("throughput", RATES, "samples_per_sec"), ("memory", MEMORY, "gpu_mem")]
)
def test_a_figure_is_taken_by_its_name_in_the_unit_that_it_says(what, table, own, subtests):
    for said, name in each(table, subtests):
        logs, without = {name: 0.5}, () if name == own else (own,)
        notes = analyse_runs(several(1, steps=4, logs=logs, without=without)).notes
        found = next((note for note in notes if f" as the {what}" in note), "")
        assert name in found if said else not found
        assert said in found


def test_a_seed_is_told_by_the_name_of_its_setting(subtests):
    for seeds, name in each(SEEDS, subtests):
        runs = several(3, steps=4)
        runs = [replace(r, config={"precision": r.name[:4], name: r.config["seed"]}) for r in runs]
        assert {group.seeds for group in analyse_runs(runs).groups} == {seeds}


def test_a_name_or_place_of_a_run_is_told_by_its_key(subtests):
    for is_label, name in each(LABELS, subtests):
        runs = several(2, steps=4)
        runs = [replace(r, config=r.config | {name: "a" if r.name[:2] == "32" else "b"}) for r in runs]
        assert (analyse_runs(runs).comparisons[0].refusal == "") is is_label


def test_full_precision_is_told_by_its_word(subtests):
    for full, other in zip([*FULL_WORDS.split(), "fp32 (default)"], cycle(OTHER_WORDS.split())):
        with subtests.test(full=full, other=other):
            words = [(run, full if FULL in run.name else other) for run in several(1, steps=4)]
            runs = [replace(run, config={"precision": word}) for run, word in words]
            assert analyse_runs(runs).baseline_value == full


def test_which_way_is_better_is_told_by_the_name_of_the_metric(subtests):
    for falls, name in each(BETTER, subtests):
        analysis = analyse_runs(several(1, steps=4, logs={name: 0.5}), metric=name)
        assert analysis.metric.falls is falls
        assert not any("is better is not known" in remark for remark in analysis.remarks)
