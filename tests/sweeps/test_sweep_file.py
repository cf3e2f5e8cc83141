"""Sweep files: what is read, and what is wrong with them, all of it at once and with its place."""

from pathlib import Path
from typing import Any

import pytest
import yaml
from support.quick import ROOT
from support.sweep_project import SweepProject

from ampcompare.errors import UserError
from ampcompare.sweeps.prepare import prepare, prepare_sweep
from ampcompare.sweeps.sweep_file import Sweep, read_sweep

BASE: dict[str, Any] = {
    "program": "run_experiment.py",
    "parameters": {"backend": {"values": ["none", "native"]}},
}


def sweep_of(project: SweepProject, **changes: Any) -> Sweep:
    """Return the sweep of a file with two backends and these changes."""
    return read_sweep(project.write_file(**BASE | changes))


def problem_of(project: SweepProject, **changes: Any) -> str:
    with pytest.raises(UserError) as caught:
        sweep_of(project, **changes)
    return str(caught.value)


WHOLE = """
name: rates
program: run_experiment.py
method: bayes
run_cap: 30
metric: {name: eval/loss, target: 0.2}
early_terminate: {type: hyperband, min_iter: 2, eta: 2}
parameters:
  backend: {values: [none, native]}
  optimizer:
    parameters:
      lr: {distribution: log_uniform_values, min: 0.001, max: 1.0}
      momentum: {value: 0.9}
"""


def test_file_is_read_whole(tmp_path):
    (tmp_path / "sweep.yaml").write_text(WHOLE)
    sweep = read_sweep(tmp_path / "sweep.yaml")
    assert (sweep.name, sweep.method, sweep.total()) == ("rates", "bayes", 30)
    assert (sweep.metric.name, sweep.metric.maximize, sweep.metric.target) == ("eval/loss", False, 0.2)
    assert (sweep.hyperband.bands[:3], sweep.hyperband.eta, sweep.hyperband.strict) == ((2, 4, 8), 2, False)
    assert [(p.key, p.kind) for p in sweep.parameters] == [
        ("backend", "categorical"),
        ("optimizer.lr", "log_uniform_values"),
        ("optimizer.momentum", "constant"),
    ]


@pytest.mark.parametrize(
    ("early", "bands"),
    [
        ({"max_iter": 2, "s": 2}, (1,)),
        ({"max_iter": 27.0, "s": 2.0, "eta": 3.0}, (3, 9)),
        # max_iter goes before min_iter, and s counts for max_iter alone.
        ({"min_iter": 5, "max_iter": 27, "s": 2}, (3, 9)),
        ({"min_iter": 5, "s": 1}, (5, 15, 45)),
    ],
)
def test_bands_of_hyperband(project, early, bands):
    sweep = sweep_of(project, metric={"name": "eval/loss"}, early_terminate={"type": "hyperband", **early})
    found = sweep.hyperband.bands
    assert found[: len(bands)] == bands
    assert found == bands if "max_iter" in early else found[-1] > 1e6


FORMS = "expected {values: [...]}, {value: ...}, {min: ..., max: ...} or a distribution"
BEYOND = "parameters.seed: its values exceed the range of numbers"
HYPERBAND = "early_terminate: {type: hyperband"
WRONG = [  # in a grid of two backends this, and what is said of it
    ("method: tpe", "method='tpe': expected 'grid', 'random' or 'bayes'"),
    ("method: custom", "method='custom': needs a scheduler of W&B"),
    ("metrics: [{name: x}, {name: y}]", "ampcompare sweep optimises one metric"),
    ("run_caps: 3", "run_caps: no such key; did you mean run_cap?"),
    ("scheduler: {engine: optuna}", "scheduler: engine 'optuna' needs W&B's server"),
    ("{program: null, job: a/b/job:v1}", "program: missing"),
    ("seed: {distribution: normal, sigma: 0}", "sigma=0: expected a number above 0"),
    ("seed: {distribution: beta, a: 1.5, b: 1.0e+232}", BEYOND),
    ("seed: {}", f"parameters.seed: {FORMS}"),
    ("seed: {min: 0.1, max: 0.2}", "parameters.seed: a grid cannot list the values of uniform; list them"),
    ("seed: {distribution: loguniform}", "seed: distribution='loguniform': did you mean log_uniform?"),
    ("seed: {min: '1', max: 2.5}", "parameters.seed.min='1': expected a number, without quotes"),
    ("seed: {values: [1, 2], probabilities: [0.5, 0.6]}", "expected one probability for each value"),
    ("seed: {value: [1, [.inf]]}", "parameters.seed.value=[1, [inf]]: expected text, number"),
    ("x: {min: 1, max: 1000000000}", "parameters: 2,000,000,000 points; a grid"),
    ("parameters: {a.b: {value: 1}, a: {parameters: {b: {value: 2}}}}", "a.b is given twice"),
    ("method: bayes", "metric: missing; bayes needs one, such as"),
    ("command: ['${env}', '${arg}']", "command[1]='${arg}': no such macro; expected one of ${env}"),
    ("command: ['--x=${args}']", "command[0]='--x=${args}': a macro must be an item of its own in the list"),
    (f"{HYPERBAND}, min_iter: 1}}", "metric: missing; early_terminate needs one, such as"),
    (f"{HYPERBAND}}}", "early_terminate: expected min_iter, or max_iter and s"),
    (f"{HYPERBAND}, max_iter: 9, min_iter: 1}}", "early_terminate: s: missing"),
]


def test_violation_is_told_with_its_path_and_what_is_allowed(project, subtests: pytest.Subtests):
    for text, said in WRONG:
        with subtests.test(text=text):
            changes = yaml.safe_load(text)
            if changes.keys() <= {"seed", "x"}:
                changes = {"parameters": BASE["parameters"] | changes}
            assert said in problem_of(project, **changes)
    parameters = {"lr": 3, "seed": {"values": []}}
    first, *every = problem_of(project, method="tpe", run_cap=-1, parameters=parameters).splitlines()
    assert "4 mistakes:" in first
    places = [line.split("=")[0].strip() for line in every]
    assert places == ["method", "parameters.lr", "parameters.seed.values", "run_cap"]


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("method: grid\nmethod: random\n", "found duplicate key method"),
        ("", "expected lines of the form key: value"),
        ("method: grid\n\tparameters: 1\n", "line 2: not valid YAML"),
        ("backend: native\n", "not a sweep file, because it has neither method: nor parameters:"),
    ],
)
def test_what_is_no_sweep_is_said_in_a_line(tmp_path, content, said):
    (tmp_path / "sweep.yaml").write_text(content)
    with pytest.raises(UserError, match=r"sweep\.yaml") as caught:
        read_sweep(tmp_path / "sweep.yaml")
    assert said in str(caught.value)


@pytest.fixture
def check(project, monkeypatch):
    """Return why our training refuses a sweep; empty where it accepts it."""
    monkeypatch.chdir(ROOT)

    def said(words=(), **changes: Any) -> str:
        try:
            prepare_sweep(sweep_of(project, **changes), words)
        except UserError as problem:
            return str(problem)
        return ""

    return said


REFUSED = [
    ("lr: {value: 0.1}", "parameters.lr: no such key; did you mean optimizer.lr?"),
    ("backend: {values: [none, O1]}", "parameters.backend='O1': expected one of none"),
    ("batch_size: {min: 0, max: 8}", "batch_size='0': expected a whole number at least 1"),
    ("plan.margin: {values: [1, 2]}", "plan.margin: a sweep has one plan"),
    ("metric: {name: val_accuracy}", "the training does not log it; did you mean eval/accuracy?"),
    ("metric: {name: amp/nonfinite_module}", "amp/nonfinite_module': is a name and cannot be optimised"),
    ("program: train.py", "program='train.py': no such file in"),
]


def test_what_the_training_would_not_take_is_told_before_anything_starts(check, subtests: pytest.Subtests):
    for text, said in REFUSED:
        with subtests.test(text=text):
            changes = yaml.safe_load(text)
            is_whole = changes.keys() & {"metric", "program"}
            assert said in check(**(changes if is_whole else {"parameters": changes}))


UNUSED = """
apiVersion: "1"
kind: sweep
controller: {type: local}
scheduler: {engine: wandb}
job: entity/project/job:v1
image_uri: python:3.12
metric: {name: eval/loss, impute: worst}
early_terminate: {type: hyperband, min_iter: 3, s: 2}
"""


def test_keys_without_effect_are_taken_and_named_before_the_first_run(project, monkeypatch):
    monkeypatch.chdir(project.folder)
    program = "program.py"
    keys = "apiVersion, kind, controller, scheduler, job, image_uri, metric.impute, early_terminate.s"
    ready = prepare_sweep(sweep_of(project, **yaml.safe_load(UNUSED), program=program), [])
    assert ready.messages == (f"ampcompare sweep ignores these keys of the file: {keys}",)
    assert not prepare_sweep(sweep_of(project, program=program), []).messages


def test_our_program_without_its_command_is_told_the_line_to_copy(project):
    for command in (None, ["${program}", "${args}"]):
        with pytest.raises(UserError) as caught:
            prepare_sweep(sweep_of(project, program="ampcompare", command=command), [])
        said, line = caught.value.lines
        assert (
            "program='ampcompare': this is a command, not a Python script, so the file needs command:" in said
        )
        assert not prepare_sweep(sweep_of(project, program="ampcompare", **yaml.safe_load(line)), []).messages


WORDS = [  # of a file of our training: a word, and what the file then says of its option
    ("backend=none,native", "{values: [none, native]}"),
    ("--backend=none, native", "{values: [none, native]}"),
    ("backend=native", "{value: native}"),
    ("seed=1,2,3", "{values: [1, 2, 3]}"),
    ("optimizer.lr=1e-3,0.5", "{values: [0.001, 0.5]}"),
    ("epochs=[1,2]", "{values: [1, 2]}"),
    ("data.root='a,b'", "{value: 'a,b'}"),
    ("data.root='a,b',c", "{values: ['a,b', c]}"),
    ("precision.keep_fp32=layer4.2,*.bn3", "{value: 'layer4.2,*.bn3'}"),  # one choice: a list of names
    ('precision.keep_fp32=["fc","layer4.2,*.bn3"]', "{values: [fc, 'layer4.2,*.bn3']}"),
    ("schedule.milestones=[30,60]", "{value: [30, 60]}"),  # one choice: it is a list of numbers
    ("schedule.milestones=[[30,60],[80]]", "{values: [[30, 60], [80]]}"),
    ("model.kwargs.widths=[32,64]", "{value: [32, 64]}"),  # of a network's own argument nothing is known
    ("model.kwargs.width=32,64", "{values: [32, 64]}"),
]
OTHERS = [  # and of another program
    ("x=1,2", "{values: [1, 2]}"),
    ("x='1,2'", "{value: '1,2'}"),
    ("fixed=[1,2]", "{value: [1, 2]}"),
    ("shapes=3,4", "{value: '3,4'}"),  # as the file has it
    ("shapes=3,5", "{values: [3, 5]}"),
]


def test_a_word_varies_or_fixes_by_the_type_of_its_option(project, subtests: pytest.Subtests):
    listed = {"values": ["a", "b"]}
    ours = dict.fromkeys(("backend", "seed", "data.root", "precision.keep_fp32", "optimizer.lr"), listed)
    fixed = ("epochs", "schedule.milestones", "model.kwargs.widths", "model.kwargs.width")
    ours |= {key: {"value": 1} for key in fixed}
    theirs = {"x": listed, "fixed": {"value": 1}, "shapes": {"values": ["1,2", "3,4"]}}
    for program, parameters, table in (
        ("run_experiment.py", ours, WORDS),
        ("program.py", theirs, OTHERS),
    ):
        file = project.write_file(program=program, parameters=parameters)
        for word, spec in table:
            with subtests.test(word=word):
                key = word.removeprefix("--").partition("=")[0]
                assert read_sweep(file, [word]).raw["parameters"][key] == yaml.safe_load(spec)


def test_a_list_that_is_no_yaml_is_told_in_a_line(project):
    for word in ("backend=none,,native", "backend=a,*b", "backend='a,b"):
        with pytest.raises(UserError, match=r"not YAML .*write it as YAML, a text in quotes") as caught:
            read_sweep(project.write_file(**BASE), [word])
        assert str(caught.value).startswith(f"backend={word.removeprefix('backend=')!r}: ")


@pytest.mark.parametrize(
    ("start", "args"),
    [
        ("${env} ${interpreter} ${program}", "${args_json}"),
        ("${interpreter} -m ampcompare run", "${args_json_file}"),
        ("/opt/bin/ampcompare run", "${args_no_hyphens}"),
    ],
)
def test_our_training_is_known_however_it_is_started_and_its_words_are_checked(check, start, args):
    wrong, right = ([*start.split(), "--config", name, args] for name in ("dmo", "demo"))
    assert "the first run would fail: --config 'dmo': no such file" in check(command=wrong)
    assert not check(["epochs=1"], command=right)
    texts = {"schedule.milestones": {"values": ["[2,3]", "[1,3]"]}, "optimizer": {"value": "{lr: 0.2}"}}
    assert not check(["schedule.name=multistep"], command=right, parameters=texts)


BUNDLED = "compare_backends"
TASKS = [  # words of the command line, the metric that the runs compare, whether greater is better
    (["task.metrics=[./scores.py:token_accuracy]"], "eval/token_accuracy", True),
    (["task.loss=./scores.py:loss", "plan.margin=0.01"], "eval/loss", False),
    ([], "eval/accuracy", True),
]


@pytest.mark.parametrize(("words", "key", "maximize"), TASKS)
def test_a_bundled_sweep_compares_the_metric_of_the_task_on_the_command_line(
    tmp_path, monkeypatch, words, key, maximize
):
    monkeypatch.chdir(tmp_path)
    functions = [f"def {name}(outputs, targets): ...\n" for name in ("token_accuracy", "loss")]
    Path("scores.py").write_text("".join(functions))
    prepared = prepare(BUNDLED, words)
    assert prepared.sweep.metric is not None
    assert (prepared.sweep.metric.name, prepared.sweep.metric.maximize) == (key, maximize)
    assert prepared.sweep.is_higher_better is maximize
    assert any(f"compares {key}" in message for message in prepared.messages) is (key != "eval/accuracy")


def test_a_margin_of_accuracies_is_refused_for_another_metric():
    for words in (["task.loss=mse"], ["task.metrics=[]"]):
        with pytest.raises(UserError, match=r"plan\.margin=0\.5 is in points of accuracy, but"):
            prepare(BUNDLED, words)
