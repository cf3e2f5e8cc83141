"""Sweep files: what is read, and what is wrong with them, all of it at once and with its place."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest
import yaml

from ampcompare import metrics
from ampcompare.errors import UserError
from ampcompare.sweeps.check import problems_of
from ampcompare.sweeps.file import read_sweep

ROOT = Path(__file__).resolve().parents[2]


def write(tmp_path, content):
    path = tmp_path / "sweep.yaml"
    path.write_text(textwrap.dedent(content) if isinstance(content, str) else yaml.safe_dump(content))
    return path


def sweep_of(tmp_path, **changes):
    base = {
        "program": "run_experiment.py",
        "method": "grid",
        "parameters": {"backend": {"values": ["none", "native"]}},
    }
    content = {key: value for key, value in (base | changes).items() if value is not ...}
    return read_sweep(write(tmp_path, content))


def problem_of(tmp_path, **changes):
    with pytest.raises(UserError) as caught:
        sweep_of(tmp_path, **changes)
    return str(caught.value)


def test_file_is_read_whole(tmp_path):
    path = write(
        tmp_path,
        """
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
        """,
    )
    sweep = read_sweep(path)
    assert (sweep.name, sweep.method, sweep.total()) == ("rates", "bayes", 30)
    assert (sweep.metric.name, sweep.metric.maximize, sweep.metric.target) == ("eval/loss", False, 0.2)
    assert (sweep.hyperband.bands[:3], sweep.hyperband.eta, sweep.hyperband.strict) == ((2, 4, 8), 2, False)
    assert [(p.key, p.kind) for p in sweep.parameters] == [
        ("backend", "categorical"),
        ("optimizer.lr", "log_uniform_values"),
        ("optimizer.momentum", "constant"),
    ]


def test_grid_is_every_combination_once_seed_by_seed(tmp_path):
    sweep = sweep_of(
        tmp_path,
        parameters={
            "backend": {"values": ["none", "native"]},
            "seed": {"min": 1, "max": 3},
            "tf32": {"value": True},
        },
    )
    points = [point.parameters for point in sweep.points]
    assert [p["seed"] for p in points] == [1, 1, 2, 2, 3, 3]
    assert len({tuple(p.items()) for p in points}) == 6


def test_run_cap_cuts_a_grid_and_bounds_a_search(tmp_path):
    assert sweep_of(tmp_path, run_cap=1).total() == 1
    assert sweep_of(tmp_path, run_cap=100).total() == 2
    assert sweep_of(tmp_path, method="random").total() is None


@pytest.mark.parametrize(
    ("early", "bands"),
    [
        ({"min_iter": 3}, (3, 9, 27)),
        ({"min_iter": 1, "eta": 2}, (1, 2, 4)),
        ({"max_iter": 27, "s": 2}, (3, 9)),
        ({"max_iter": 100, "s": 3, "eta": 10}, (1, 10)),
    ],
)
def test_bands_of_hyperband(tmp_path, early, bands):
    sweep = sweep_of(tmp_path, metric={"name": "eval/loss"}, early_terminate={"type": "hyperband", **early})
    assert sweep.hyperband.bands[: len(bands)] == bands
    if "max_iter" in early:
        assert len(sweep.hyperband.bands) == len(bands)


def one(**spec):
    return {"parameters": {"seed": spec}}


FORMS = "expected {values: [...]}, {value: ...}, {min: ..., max: ...} or a distribution"
WRONG = {
    "method": ({"method": "tpe"}, "method='tpe': expected 'grid', 'random' or 'bayes'"),
    "no_method": ({"method": ...}, "method: missing"),
    "unknown_key": ({"metrics": {"name": "x"}}, "metrics: no such key; did you mean metric?"),
    "server_only": ({"launch": {}}, "launch: works with W&B's server only"),
    "parameters_empty": ({"parameters": {}}, "parameters: expected 1 or more of them"),
    "bare_value": ({"parameters": {"seed": 3}}, f"parameters.seed=3: {FORMS}"),
    "no_values": (one(values=[]), "parameters.seed.values=[]: expected 1 or more of them"),
    "nothing": (one(), f"parameters.seed: {FORMS}"),
    "grid_continuous": (
        {"parameters": {"optimizer.lr": {"min": 0.1, "max": 0.2}}},
        "parameters.optimizer.lr: a grid cannot run through uniform; list values",
    ),
    "swapped": (one(min=5, max=1), "parameters.seed: min=5 is above max=1; swap them"),
    "distribution": (
        one(distribution="loguniform", min=1, max=2),
        "parameters.seed: distribution='loguniform': did you mean log_uniform?",
    ),
    "exponents": (
        {"method": "random", **one(distribution="log_uniform", min=1, max=1000)},
        "parameters.seed: its values are beyond what a number can hold",
    ),
    "not_positive": (
        {"method": "random", **one(distribution="log_uniform_values", min=0, max=1)},
        "parameters.seed.min=0: expected a number above 0",
    ),
    "beyond": (
        {"method": "random", **one(distribution="log_normal", mu=1e8)},
        "parameters.seed: its values are beyond what a number can hold",
    ),
    "no_multiple": (
        one(distribution="q_uniform", min=1.2, max=1.5),
        "parameters.seed: no multiple of q=1 lies in the range",
    ),
    "text_for_number": (
        {"method": "random", **one(min="1", max=2.5)},
        "parameters.seed.min='1': expected a number, without quotes",
    ),
    "extra_setting": (one(values=[1], min=0), "parameters.seed.min: no such key; expected one of"),
    "int_of_float": (
        one(distribution="int_uniform", min=0.5, max=2),
        "parameters.seed.min=0.5: expected a whole number",
    ),
    "probabilities": (
        one(values=[1, 2], probabilities=[0.5, 0.6]),
        "parameters.seed: probabilities=[0.5, 0.6]: expected one of each value",
    ),
    "not_finite": (one(values=[float("nan")]), "parameters.seed.values[0]=nan: expected text, number"),
    "in_a_list": (one(value=[1, [float("inf")]]), "parameters.seed.value=[1, [inf]]: expected text, number"),
    "empty_group": (
        {"parameters": {"model": {"parameters": {}}}},
        "parameters.model.parameters: expected 1 or more",
    ),
    "beside_a_group": (
        {"parameters": {"model": {"parameters": {"name": {"value": 1}}, "value": 2}}},
        "parameters.model.value: no such key; expected one of parameters",
    ),
    "too_many": ({"parameters": {"x": {"min": 1, "max": 10**9}}}, "parameters: 1,000,000,000 points; a grid"),
    "bayes_without_metric": ({"method": "bayes"}, "metric: missing; bayes needs one to go by"),
    "metric_name": ({"metric": {"goal": "maximize"}}, "metric.name: missing"),
    "goal": (
        {"metric": {"name": "x", "goal": "max"}},
        "metric.goal='max': expected 'minimize'",
    ),
    "cap": ({"run_cap": 0}, "run_cap=0: expected at least 1"),
    "cap_of_true": ({"run_cap": True}, "run_cap=True: expected a whole number"),
    "program": ({"program": ...}, "program: missing; expected the script to run"),
    "command_text": ({"command": "python x.py"}, "command='python x.py': expected a list"),
    "macro": (
        {"command": ["${env}", "${arg}"]},
        "command[1]='${arg}': no such macro; expected one of ${env}",
    ),
    "early_type": (
        {"metric": {"name": "x"}, "early_terminate": {"type": "asha", "min_iter": 1}},
        "early_terminate.type='asha': expected 'hyperband'",
    ),
    "early_no_metric": (
        {"early_terminate": {"type": "hyperband", "min_iter": 1}},
        "metric: missing; early_terminate needs one to go by",
    ),
    "early_bands": (
        {"metric": {"name": "x"}, "early_terminate": {"type": "hyperband"}},
        "early_terminate: expected min_iter, or max_iter and s",
    ),
    "early_both": (
        {"metric": {"name": "x"}, "early_terminate": {"type": "hyperband", "min_iter": 1, "max_iter": 3}},
        "early_terminate: expected min_iter, or max_iter and s",
    ),
}


def test_violation_is_told_with_its_path_and_what_is_allowed(tmp_path, subtests: pytest.Subtests):
    for name in WRONG:
        with subtests.test(name=name):
            changes, said = WRONG[name]
            assert said in problem_of(tmp_path, **changes)


def test_all_violations_are_told_at_once(tmp_path):
    said = problem_of(
        tmp_path, method="tpe", run_cap=-1, parameters={"lr": 3, "seed": {"values": []}}
    ).splitlines()
    assert "4 things are wrong, nothing was started" in said[0]
    places = [line.split("=")[0].strip() for line in said[1:]]
    assert places == ["method", "parameters.lr", "parameters.seed.values", "run_cap"]


BOMB = "".join(f"a{i}: &a{i} [{', '.join(['*a' + str(i - 1)] * 10) if i else '1'}]\n" for i in range(9))


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (BOMB + "method: grid\nparameters: {seed: {values: *a8}}\n", "expansion exceeds"),
        ("method: grid\nmethod: random\n", "found duplicate key method"),
        ('method: grid\nparameters: {seed: {value: "\\ud800"}}\n', "invalid Unicode character"),
        ('method: grid\nparameters: {seed: {value: "a\\0b"}}\n', "expected text, number"),
        ("", "expected a sweep (method, parameters, ...), found nothing"),
        ("- a\n- b\n", "expected a sweep (method, parameters, ...), found a list"),
        ("method: grid\n\tparameters: 1\n", "line 2: not valid YAML"),
        (
            "backend: native\nepochs: 3\n",
            "not a sweep, it has neither method nor parameters; a config is run with",
        ),
        ("method: grid\nparameters: {seed: {values: &a [*a]}}\n", "recursive aliases"),
        ("method: !!python/object:os.system {}\n", "not valid YAML"),
    ],
)
def test_what_is_no_sweep_is_said_in_a_line(tmp_path, content, said):
    with pytest.raises(UserError, match=r"sweep\.yaml") as caught:
        read_sweep(write(tmp_path, content))
    assert said in str(caught.value)


def test_what_is_no_file_is_not_waited_for(tmp_path):
    import os

    pipe = tmp_path / "pipe.yaml"
    os.mkfifo(pipe)
    for path in (pipe, tmp_path, "/dev/zero"):
        with pytest.raises(UserError, match="no such file"):
            read_sweep(path)


def test_option_that_is_varied_twice_is_told(tmp_path):
    twice = {"optimizer.lr": {"value": 1}, "optimizer": {"parameters": {"lr": {"value": 2}}}}
    assert "optimizer.lr is in there twice" in problem_of(tmp_path, parameters=twice)


def test_missing_file_names_those_there_are(tmp_path, monkeypatch):
    monkeypatch.chdir(ROOT)
    with pytest.raises(UserError, match=r"no such file; expected a path or one of .*compare_backends"):
        read_sweep(tmp_path / "nothing.yaml")


def check(tmp_path, monkeypatch, words=(), **changes):
    monkeypatch.chdir(ROOT)
    return "\n".join(problems_of(sweep_of(tmp_path, **changes), words))


def test_parameter_that_is_no_option_is_told(tmp_path, monkeypatch):
    said = check(
        tmp_path,
        monkeypatch,
        parameters={"lr": {"value": 0.1}, "optimizer": {"parameters": {"rate": {"value": 1}}}},
    )
    assert "parameters.lr: lr: no such key; did you mean optimizer.lr?" in said
    assert "parameters.optimizer.parameters.rate: optimizer.rate: no such key" in said


def test_value_that_the_option_does_not_take_is_told_before_anything_starts(tmp_path, monkeypatch):
    said = check(
        tmp_path,
        monkeypatch,
        parameters={"backend": {"values": ["none", "O1"]}, "batch_size": {"min": 0, "max": 8}},
    )
    assert "parameters.backend: backend='O1': expected one of none" in said
    assert "parameters.batch_size: batch_size='0': expected a whole number at least 1" in said


def test_metric_that_is_never_logged_is_told(tmp_path, monkeypatch):
    said = check(tmp_path, monkeypatch, metric={"name": "val_accuracy"})
    assert "metric.name='val_accuracy': the training never logs it; did you mean eval/accuracy?" in said


def test_words_are_checked_too(tmp_path, monkeypatch):
    said = check(tmp_path, monkeypatch, words=["epoch=3"])
    assert "epoch: no such key; did you mean epochs?" in said


@pytest.mark.parametrize("form", ["${args_json}", "${args_json_file}"])
def test_words_of_the_command_are_checked_in_every_form(tmp_path, monkeypatch, form):
    said = check(tmp_path, monkeypatch, command=["${interpreter}", "${program}", "--config", "dmo", form])
    assert "the first run would end at once: --config 'dmo': no such file" in said
    assert not check(
        tmp_path,
        monkeypatch,
        ["epochs=1"],
        command=["${interpreter}", "${program}", "--config", "demo", form],
    )


@pytest.mark.parametrize(
    "start",
    [
        ["${env}", "${interpreter}", "${program}"],
        ["${env}", "${interpreter}", "-m", "ampcompare", "run"],
        ["${env}", "ampcompare", "run"],
        ["/opt/venv/bin/ampcompare", "run"],
    ],
)
def test_every_way_to_start_our_training_is_known(tmp_path, monkeypatch, start):
    command = [*start, "--config", "demo", "${args_no_hyphens}"]
    assert not check(tmp_path, monkeypatch, ["epochs=1"], command=command)
    wrong = [*start, "--config", "dmo", "${args_no_hyphens}"]
    assert "the first run would end at once: --config 'dmo'" in check(tmp_path, monkeypatch, command=wrong)


def test_missing_program_is_told(tmp_path, monkeypatch):
    assert "program='train.py': no such file in" in check(tmp_path, monkeypatch, program="train.py")


OF_IMAGES = [m.key for m in metrics.METRICS.values() if m.needs != metrics.OF_TASK]


@pytest.mark.slow
def test_every_listed_metric_will_do_or_is_refused_with_the_reason(
    tmp_path, monkeypatch, subtests: pytest.Subtests
):
    monkeypatch.chdir(ROOT)
    reasons = {
        "environment": "is no number",
        "refusal": "is a sentence",
        "recorder/skipped_steps_are": "is a sentence",
        **dict.fromkeys(("data/test_set", "data/resumed_inexactly"), "is no number"),
        **dict.fromkeys(("data/test_images", "data/classes"), "is the same in every run"),
        "grad/exponents": "is a histogram",
        "amp/nonfinite_module": "is a name",
        "amp/nonfinite_modules": "is a line of names",
        "amp/scale_collapsed_at_step": "is null in every run whose loss scale holds",
        "amp/nonfinite_buffers_at_step": "is null in every run whose buffers stay finite",
    }
    for name in [*OF_IMAGES, "grad/underflow_fraction/layer1"]:
        with subtests.test(name=name):
            said = check(tmp_path, monkeypatch, ["epochs=1"], metric={"name": name})
            if name in reasons:
                assert f"metric.name={name!r}: {reasons[name]}, nothing to go by" in said
                continue
            assert not said
            early = {"type": "hyperband", "min_iter": 1}
            said = check(tmp_path, monkeypatch, ["epochs=1"], metric={"name": name}, early_terminate=early)
            is_late = "is logged at the end only" in said
            assert is_late == (name.startswith("best/") or name.endswith(("_median", "_p50", "_p95")))
            assert is_late or not said


REGRESSION = {"task.loss": {"value": "mae"}, "backend": {"values": ["none", "native"]}}


@pytest.mark.parametrize("name", ["eval/mae", "eval/mse", "eval/loss", "best/eval_mae"])
def test_a_metric_of_the_task_will_do_where_the_training_scores_by_it(tmp_path, monkeypatch, name):
    monkeypatch.chdir(ROOT)
    metric = {"name": name, "goal": "minimize"}
    assert not check(tmp_path, monkeypatch, ["epochs=1"], metric=metric, parameters=REGRESSION)
    if name != "eval/loss":
        assert f"metric.name={name!r}: the training never logs it" in check(
            tmp_path, monkeypatch, ["epochs=1"], metric=metric
        )


def test_a_metric_from_outside_is_known_by_its_name(tmp_path, monkeypatch):
    (tmp_path / "scores.py").write_text("def wer(outputs, targets): ...\n")
    parameters = REGRESSION | {"task.metrics": {"value": [f"{tmp_path}/scores.py:wer"]}}
    for name, is_known in (
        ("eval/wer", True),
        ("best/eval_wer", True),
        ("eval/mae", False),
        ("eval/w", False),
    ):
        said = check(tmp_path, monkeypatch, ["epochs=1"], metric={"name": name}, parameters=parameters)
        assert ("the training never logs it" not in said) is is_known, said


def test_program_of_others_may_have_any_options(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").touch()
    sweep = sweep_of(tmp_path, program="train.py", parameters={"anything": {"value": 1}})
    assert not problems_of(sweep, ["also=this"])
