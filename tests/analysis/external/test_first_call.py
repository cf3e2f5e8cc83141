"""A newcomer's first call on logs of other programs ends with a right page, or with a command to copy."""

import json
import shlex

import pytest
from support.log_templates import GAIN, PROGRAMS, RUNS, results, values, write, write_logs

from ampcompare import analyse_runs, load_runs
from ampcompare.analysis.options import AnalysisOptions
from ampcompare.errors import UserError
from ampcompare.report.options import ReportOptions

# What the command proposes, and 100 where the log is in percent.
METRICS = {
    "CSV": "val_acc",
    "JSON lines": "val.acc",
    "mmengine": "accuracy/top1",
    "mmcv": "bbox_mAP",
    "Keras": "val_accuracy",
    "TensorBoard": "validation/epoch_accuracy",
    "TensorBoard's downloads": "val_acc",
    "Lightning": "val_acc",
    "Hugging Face": "eval_accuracy",
    "text": "val_acc",
    "table": "val_acc",
}


def write_event_files(folder: str) -> None:
    """Write Keras' event files in the folders train and validation of each run."""
    pytest.importorskip("tensorboard")
    from torch.utils.tensorboard import SummaryWriter

    for arm, seed in RUNS:
        for part, score in (("train", 0.2), ("validation", 0.0)):
            with SummaryWriter(f"{folder}/{arm}/{seed}/{part}") as writer:
                for epoch in (1, 2, 3):
                    value = values(arm, seed, epoch)["score"] + score
                    writer.add_scalar("epoch_accuracy", value, epoch)


def arguments_of(options: ReportOptions) -> list[str]:
    """Return the arguments of the command that a refused one proposes."""
    with pytest.raises(UserError) as caught:
        options.analyse()
    words = shlex.split(caught.value.lines[-1].removeprefix("for example: "))
    return words[words.index("report") + 1 :]


@pytest.mark.parametrize(("program", "metric"), METRICS.items())
def test_the_first_call_gives_a_command_that_compares(tmp_path, monkeypatch, program, metric):
    monkeypatch.chdir(tmp_path)
    if program == "TensorBoard":
        write_event_files("my logs")
    else:
        write_logs(PROGRAMS[program], "my logs/$arm/$seed")
    arms = [f"{arm}=my logs/{arm}" for arm in sorted(GAIN, reverse=True)]
    expected = [*arms, "--metric", f"{metric}:max"]
    assert arguments_of(ReportOptions(["my logs"])) == expected
    more = AnalysisOptions(margin=0.25)
    proposed = arguments_of(ReportOptions(arms, analysis=more, formats="json"))
    assert proposed == [*arms, "--margin", "0.25", "--format", "json", *expected[2:]]
    analysis = ReportOptions(arms, analysis=AnalysisOptions(metric=f"{metric}:max")).analyse()
    found = {group.label: (group.n, group.estimates["quality"].value) for group in analysis.groups}
    truth = results(100 if "top1" in metric else 1)
    assert found == {arm: (count, pytest.approx(value)) for arm, (count, value) in truth.items()}


@pytest.mark.parametrize("program", ["TensorBoard's downloads", "Lightning"])
def test_the_first_call_on_one_folder_with_all_runs_names_repeats(tmp_path, monkeypatch, program):
    monkeypatch.chdir(tmp_path)
    write_logs(PROGRAMS[program], "logs/${arm}_seed$seed")
    *arms, option, value = arguments_of(ReportOptions(["logs"]))
    assert (option, value) == ("--metric", f"{METRICS[program]}:max")
    analysis = ReportOptions(arms, analysis=AnalysisOptions(metric=value)).analyse()
    assert {group.label: group.n for group in analysis.groups} == dict.fromkeys(GAIN, 3)
    assert analysis.baseline_value == "fp32"


@pytest.mark.parametrize(
    ("files", "sources", "program"),
    [
        (
            {
                "mlruns/0/meta.yaml": "experiment_id: '0'\n",
                "mlruns/0/abc/meta.yaml": "run_id: abc\n",
                "mlruns/0/abc/metrics/val_acc": "1700000000000 0.5 1\n1700000001000 0.6 2\n",
            },
            ("mlruns", "mlruns/0/abc", "mlruns/0/abc/metrics/val_acc"),
            r"MLflow \(mlruns\)",
        ),
        (
            {
                "sacred/1/run.json": '{\n"status": "COMPLETED"\n}',
                "sacred/1/config.json": '{\n"lr": 0.1\n}',
                "sacred/1/metrics.json": '{\n"acc": {"steps": [1], "values": [0.5]}\n}',
                "sacred/1/cout.txt": "training, step 1\n",
            },
            ("sacred", "sacred/1"),
            "Sacred",
        ),
    ],
)
def test_folders_of_other_trackers_are_refused_by_name(tmp_path, monkeypatch, files, sources, program):
    monkeypatch.chdir(tmp_path)
    for name, text in files.items():
        write(name, text)
    for source in sources:
        with pytest.raises(UserError, match=rf"a folder of {program}.*write one CSV file per run"):
            load_runs([source])


def test_a_key_without_numbers_is_named_with_its_values(tmp_path):
    rows = [{"step": step, "acc": [0.5, 0.6], "loss": 0.5} for step in (1, 2)]
    path = write(tmp_path / "log.jsonl", "\n".join(map(json.dumps, rows)))
    for options in ({"metric": "acc:max"}, {"metric": "loss:min", "time": "acc:seconds"}):
        with pytest.raises(UserError, match=r"values are no numbers, such as \[0.5, 0.6\]"):
            analyse_runs(load_runs([f"a={path}"]), **options)
