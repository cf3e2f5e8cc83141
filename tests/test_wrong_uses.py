"""What real people get wrong, each with the exact line that they see."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.properties import examples
from support.quick import ROOT
from support.refusals import line_of

from ampcompare.config.load import config_from_cli, load_config
from ampcompare.config.schema import OPTIONS
from ampcompare.errors import UserError
from ampcompare.experiment import run
from ampcompare.runtime.paths import shell_command
from ampcompare.sweeps.sweep_file import read_sweep
from ampcompare.sweeps.training_options import check

DOORS = ", pkg.mod:Name, ./file.py:Name"
NAMES = "none, tf32, native, native_bf16, apex_o1, apex_o1_bf16, apex_o2, fp16, bf16, bf16_sr"
BACKENDS = f"expected one of {NAMES}{DOORS}"
HELP = f"{shell_command('ampcompare', 'run', '--help-all')} lists all options"
ONE_VALUE, FILE = "a run takes one value; to compare several values, use ampcompare sweep", "./net.py"
WHOLE = "expected a whole number at least 1"

EQUALS = "expected key=value, such as backend=native or optimizer.lr=0.05"
LEAST_0 = "expected a whole number at least 0 and at most 9223372036854775807"
DEVICES = "auto, cpu, cuda, cuda:N, mps"
MODELS = f"resnet50, resnet18, resnet152, resnet20, tiny, timm:NAME, torchvision:NAME{DOORS}"
LOOKS = "expected a list of whole numbers, each at least 2, such as [3,6,10], or null"
TEXTS = "expected a list of texts, such as [a,b]"
MEANS = "expected a list of numbers, such as [0.5,0.5,0.5]"
PLAIN = "${...} may only name another option, such as ${backend}"

# Of a key the values that are refused, and what is said of each: `KEY='VALUE': ...`.
VALUES = [
    # Backends, as other libraries call them.
    ("backend", BACKENDS, "", "${wandb.mode}"),
    ("backend", f"{BACKENDS}; {ONE_VALUE}", "native,apex_o1", "[native,apex_o1]"),
    (
        "model.name",
        f"expected one of {MODELS}; name a function or class in the file: model.name={FILE}:NAME",
        FILE,
    ),
    ("backend", f"{BACKENDS}; did you mean none?", "O0", "fp32"),
    ("backend", f"{BACKENDS}; did you mean tf32?", "TF32", "tensorfloat32"),
    ("backend", f"{BACKENDS}; did you mean apex_o1?", "O1", "apex_01"),
    ("backend", f"{BACKENDS}; did you mean native?", "amp", "fp16-mixed", "NATIVE"),
    # Numbers.
    ("optimizer.lr", "expected a number above 0", *"1e-1x 0 nan inf true".split(), "9" * 400),
    ("epochs", WHOLE, "0", "inf", "null", "true", "${backend}"),
    ("seed", LEAST_0, "-1", "1.5"),
    ("seed", f"{LEAST_0}; {ONE_VALUE}", "1,2"),
    ("optimizer.momentum", "expected a number at least 0 and below 1", "1"),
    ("precision.loss_scale", "expected a number above 0, or dynamic", "auto", "-1"),
    ("plan.control", "expected one of none, bookends, chaos; did you mean none?", "null"),
    # Words.
    ("deterministic", "expected true or false", "maybe"),
    ("device", f"expected one of {DEVICES}", "cuda:x"),
    (
        "schedule.name",
        "multistep needs milestones, in epochs; set them, such as schedule.milestones=[100,150]",
        "multistep",
    ),
    ("model.name", f"expected one of {MODELS}; did you mean resnet50?", "resnet-50"),
    ("wandb.project", "expected 1 to 128 characters without / \\ # ? % :", "me/it"),
    ("wandb.tags", TEXTS, "", "[red", "{red: 1}", "${backend}"),
    ("output_dir", "contains a NUL character; expected a text", "a\0b"),
    ("output_dir", "contains a byte that is not UTF-8; expected a text", "caf\udce9"),
    (
        "optimizer",
        "optimizer is a group of options; set one of optimizer.name, optimizer.lr, optimizer.momentum, "
        "optimizer.nesterov, optimizer.weight_decay, optimizer.eps, optimizer.fused",
        *("fast", "${schedule}"),
    ),
    # What else a template may hold.
    ("wandb.name", PLAIN, "${oc.env:HOME}", "${.mode}", "${data[mean]}", "${"),
    ("wandb.name", PLAIN, "${${wandb.group}:HOME}", "\\${backend}"),
    ("wandb.name", f"${{nope}} is no option; {HELP}", "${nope}"),
    ("wandb.name", "Recursive interpolation detected", "${wandb.name}"),
    ("wandb.name", "${optimizer} is no option; did you mean optimizer.lr?", "${optimizer}"),
]
NEAR = {
    "lr=0.1": "optimizer.lr",
    "batch-size=32": "batch_size",
    "num_epochs=3": "epochs",
}
WORDS = {
    **{f"{key}={value}": f"{key}={value!r}: {said}" for key, said, *values in VALUES for value in values},
    **{word: f"{word.partition('=')[0]}: no such key; did you mean {near}?" for word, near in NEAR.items()},
    **{word: f"{word!r}: {EQUALS}" for word in ("backend", "=native", "--fast")},
    "zzz=1": f"zzz: no such key; {HELP}",
    "--backend": f"--backend: expected --backend=VALUE, {BACKENDS.removeprefix('expected ')}",
    "--batch-size": f"'--batch-size': {EQUALS}; did you mean batch_size?",
    "{": (
        "{: not valid JSON (Expecting property name enclosed in double quotes: line 1 column 2 (char 1)); "
        'expected an object such as {"backend": "native"}'
    ),
    "--config": "--config: expected a name or a path after it, such as --config demo",
    "nowhere.json": "nowhere.json: cannot be read (No such file or directory)",
    "data.mean=0.5": "data.mean=[0.5]: expected three numbers, one per channel",
    "data.mean=0.5,x": f"data.mean='0.5,x': {MEANS}",
    "data.mean=nan,1,1": f"data.mean='nan,1,1': {MEANS}",
    '{"epochs": true}': f"epochs=True: {WHOLE}",
    '{"plan.looks": [3, true]}': f"plan.looks=[3, True]: {LOOKS}",
    "data.mean=[1,2]": "data.mean=[1.0, 2.0]: expected three numbers, one per channel",
    "data.std=[1,1,0]": "data.std=[1.0, 1.0, 0.0]: expected three numbers above 0, one per channel",
    "schedule.milestones=[3]": (
        "schedule.milestones=[3.0]: schedule.name=cosine has no milestones; "
        "leave it out, or use schedule.name=multistep"
    ),
    '{"optimizer.nesterov": true, "optimizer.momentum": 0}': (
        "optimizer.nesterov=true: needs optimizer.name=sgd and optimizer.momentum above 0; set them"
    ),
    "optimizer.eps=1e-4": (
        "optimizer.eps=0.0001: optimizer.name=sgd has no eps; leave it out, or use optimizer.name=adam or "
        "optimizer.name=adamw"
    ),
    '{"training.gradient_penalty": 0.1, "training.accumulate": 2}': (
        "training.gradient_penalty=0.1: training.accumulate=2 never has the gradient of the whole "
        "step at once; use training.accumulate=1"
    ),
    "data.source=image_folder": (
        "data.root=None: data.source=image_folder needs a folder or archive with train/<class>/* and "
        "test/<class>/*; set data.root=PATH"
    ),
    "wandb.tags=['${oc.env:HOME}']": f"wandb.tags=\"['${{oc.env:HOME}}']\": {PLAIN}",
    "plan.looks=[3,3]": "plan.looks=[3, 3]: expected increasing numbers of seeds, such as [5,10]",
    "plan.looks=[1,3]": f"plan.looks='[1,3]': {LOOKS}",
    '{"plan.looks": [3, 6], "plan.max_seeds": 5}': (
        "plan.max_seeds=5: the last look of plan.looks=[3, 6] needs more seeds; "
        "raise plan.max_seeds, or leave out the later looks"
    ),
    '{"optimizer.name": "adam", "optimizer.momentum": 0.9}': (
        "optimizer.momentum=0.9: only optimizer.name=sgd has momentum; "
        "set optimizer.momentum=0 or use optimizer.name=sgd"
    ),
    '{"backend": "native", "precision.min_loss_scale": 1}': (
        "precision.min_loss_scale=1: backend=native has no lower limit of the loss scale; leave it out"
    ),
    '{"backend": "bf16", "precision.loss_scale": 128}': (
        "precision.loss_scale=128: backend=bf16 does not scale the loss; leave it out"
    ),
    **dict.fromkeys(
        ("tf32=true", "--tf32", '{"backend": "none", "tf32": true}'),
        "backend='none' tf32=True: strict fp32 has no TF32; use backend=tf32",
    ),
    '{"backend": "tf32", "precision.keep_fp32": "layer4,fc"}': (
        "precision.keep_fp32=layer4,fc: backend=tf32 uses TF32 in every module, because PyTorch has one "
        "switch "
        "for all of them; leave it out"
    ),
    '{"backend": "apex_o1", "precision.keep_batchnorm_fp32": false}': (
        "precision.keep_batchnorm_fp32=false: backend=apex_o1 keeps all weights in fp32, those of "
        "BatchNorm too; leave it out"
    ),
    '{"backend": "apex_o1", "precision.min_loss_scale": 1e6}': (
        "precision.min_loss_scale=1e+06: expected at most precision.init_scale=65536; lower it or raise"
        " init_scale"
    ),
    "seed=???": f"seed=???: has no value; set it, {LEAST_0}",
}


def test_a_wrong_word_gets_exactly_this_line(subtests: pytest.Subtests):
    for word in WORDS:
        with subtests.test(word=word):
            assert line_of(config_from_cli, ["--config", "demo", word]) == WORDS[word]


@pytest.mark.parametrize("word", ["seed=" + "9" * 20_000, '{"a":' * 5_000, "[" * 20_000])
def test_of_a_value_of_any_length_what_it_is_and_what_is_expected_are_said(word: str):
    with pytest.raises(UserError) as caught:
        config_from_cli([word])
    said = str(caught.value)
    assert word.partition("=")[0][:500] in said
    assert "expected" in said
    assert len(said) < 2_100


def test_a_sweep_file_as_config_and_a_config_as_sweep_say_what_to_do(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(ROOT)
    said = line_of(load_config, "sweeps/batch_size.yaml")
    assert re.search("a sweep, not a config; run it with: .*ampcompare sweep sweeps/batch_size.yaml", said)
    assert "ampcompare run --config configs/demo.yaml" in line_of(read_sweep, "configs/demo.yaml")


def test_brackets_without_end_are_a_line_and_not_the_end_of_the_process(tmp_path: Path):
    path = tmp_path / "mine.yaml"
    path.write_text("wandb: " + "[" * 100_000)
    assert "cannot be read as YAML: nested deeper than 50 levels" in line_of(load_config, str(path))


DATA = """
import torch


def build(train, nan=False):
    inputs, targets = torch.ones(64, 3), torch.arange(64) % 4
    if nan:
        inputs[0] = float("nan")
    return inputs, targets


def without_parameter():
    return build(True)


def returns_nothing(train):
    pass


def fails(train):
    raise OSError("disk not mounted")


def nan_loss(outputs, targets):
    return outputs.sum() * float("nan")


def net(num_classes):
    return torch.nn.Linear(3, num_classes)
"""


@pytest.fixture
def mine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make a working directory with the network and data of a newcomer."""
    (tmp_path / "mine.py").write_text(DATA)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("WANDB_MODE", "disabled")


def run_mine(*overrides: str) -> None:
    run(load_config("demo", ["model.name=./mine.py:net", "data.source=./mine.py:build", *OWN, *overrides]))


OWN = ["data.train_limit=null", "data.test_limit=null", "batch_size=16", "epochs=2", "log.every=1"]


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        (
            "without_parameter",
            "without_parameter() has no parameter; write def without_parameter(train), which returns "
            "(inputs, "
            "targets), a Dataset or a DataLoader: the training data for train=True, the test data for "
            "train=False",
        ),
        (
            "returns_nothing",
            "data for train=True: the function returned None; "
            "expected (inputs, targets), a map-style Dataset "
            "with a __len__, or a DataLoader",
        ),
        ("fails", "cannot get data for train=True (line 21: OSError: disk not mounted)"),
    ],
)
@pytest.mark.usefixtures("mine")
def test_a_wrong_data_function_gets_the_signature_or_the_result_to_write(function: str, expected: str):
    line = line_of(run_mine, f"data.source=./mine.py:{function}")
    assert line == f"data.source='./mine.py:{function}': {expected}"


FINITE = "the training data have neither NaN nor infinite values"


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        (
            ["data.kwargs.nan=true"],
            "the training inputs contain NaN; remove or replace these values, or continue with "
            "training.on_nan",
        ),
        (
            ["optimizer.lr=3e38"],
            f"{FINITE}; try a smaller optimizer.lr or training.clip_norm, or continue with training.on_nan",
        ),
        (  # no weight has been updated, so the learning rate is not the cause
            ["task.loss=./mine.py:nan_loss", "task.metrics=[]"],
            f"{FINITE}; no update came before, so check the range of the inputs, the loss function and the "
            "initial weights; `ampcompare why diff`",
        ),
    ],
)
@pytest.mark.usefixtures("mine")
def test_a_loss_that_is_not_finite_says_whether_the_data_are(
    overrides: list[str], expected: str, caplog: pytest.LogCaptureFixture
):
    with caplog.at_level("ERROR"):
        run_mine(*overrides)
    (line,) = caplog.messages
    assert re.match(r"error: step \d+: the training loss is (NaN|infinite) \(loss scale 1\); ", line)
    assert expected in line


def test_a_copied_sweep_file_without_its_command_gets_the_line_to_add(tmp_path: Path):
    text = (ROOT / "sweeps" / "compare_backends.yaml").read_text()
    copied = re.sub(r"^command:\n(  .*\n)+", "", text, flags=re.M)
    assert "command:" not in copied
    (tmp_path / "mine.yaml").write_text(copied)
    with pytest.raises(UserError) as caught:
        check(read_sweep(tmp_path / "mine.yaml"), [])
    first, line = caught.value.lines
    assert "this is a command, not a Python script, so the file needs command:; add this line:" in first
    (tmp_path / "mine.yaml").write_text(f"{copied}{line}\n")  # the line to add is enough
    assert check(read_sweep(tmp_path / "mine.yaml"), [])


# Fuzz: whatever the input, a config, a sweep, or UserError with printable text; never another exception.
CONFIG, SWEEP = ROOT / "configs" / "reference.yaml", ROOT / "sweeps" / "learning_rate.yaml"
HOSTILE = ["null", "[]", "{}", "- a", "!!python/object:os.system x", "&a [*a]", "1e999", "\0", "é", ": :"]
HOSTILE += ["${x}", "${seed}", "${wandb.name}", "???", "<<: *a"]
PIECES = st.binary(max_size=8) | st.sampled_from(
    [text.encode() for text in [*HOSTILE, *OPTIONS, "parameters:", "values:", "method:", "\t", "\n  "]]
)


def mutate(data: st.DataObject, content: bytes) -> bytes:
    found = bytearray(content)
    for _ in range(data.draw(st.integers(0, 4))):
        place = data.draw(st.integers(0, len(found)))
        found[place : place + data.draw(st.integers(0, 12))] = data.draw(PIECES)
    return bytes(found)


def told(use: Callable[..., object], given: Any) -> int:
    """How many lines the UserError has; nothing else may come of the use."""
    try:
        use(given)
    except UserError as problem:
        lines = str(problem).split("\n")
    else:
        return 0
    assert all(line.isprintable() and line for line in lines), lines
    return len(lines)


@pytest.mark.parametrize(("original", "read"), [(CONFIG, load_config), (SWEEP, read_sweep)])
@examples(50, 1500)
def test_no_file_raises_anything_but_printable_lines(
    tmp_path: Path, examples: int, original: Path, read: Any
):
    path = tmp_path / "mine.yaml"

    @settings(max_examples=examples)
    @given(st.data())
    def try_one(data: st.DataObject) -> None:
        path.write_bytes(mutate(data, original.read_bytes()))
        assert told(read, str(path)) <= 1 or original == SWEEP  # which has one for each mistake

    try_one()


VALUE = (
    st.text(max_size=12)
    | st.sampled_from(HOSTILE)
    | st.floats().map(str)
    | st.lists(st.none() | st.booleans() | st.integers() | st.text(max_size=4), max_size=3).map(str)
)
KEY = st.sampled_from([*OPTIONS, "optimizer", "x"]) | st.text(max_size=6)
WORD = st.builds("{}{}={}".format, st.sampled_from(["", "--", "+", "++"]), KEY, VALUE) | st.text(max_size=12)


@examples(50, 1500)
def test_no_words_raise_anything_but_a_line(examples: int):
    @settings(max_examples=examples)
    @given(st.lists(WORD, max_size=3))
    def try_one(words: list[str]) -> None:
        assert told(config_from_cli, words) <= 1

    try_one()
