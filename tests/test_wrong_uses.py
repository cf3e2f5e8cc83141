"""What real people get wrong, each with the line that they see."""

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
from ampcompare.sweeps.sweep_file import read_sweep

# Words of a command line, and what the line about each has besides the key and the value.
WORDS = {
    # Backends, as other libraries call them.
    "backend=": "expected one of none, tf32, native, ",
    "backend=native,apex_o1": "a run takes one value; to compare several values, use ampcompare sweep",
    "backend=O0": "did you mean none?",
    "backend=tensorfloat32": "did you mean tf32?",
    "backend=apex_01": "did you mean apex_o1?",
    "backend=fp16-mixed": "did you mean native?",
    "model.name=./net.py": "name a function or class in the file: model.name=./net.py:NAME",
    "model.name=resnet-50": "did you mean resnet50?",
    # Numbers.
    **dict.fromkeys(
        [f"optimizer.lr={x}" for x in ("1e-1x", "0", "nan", "inf", "9" * 400)], "a number above 0"
    ),
    **dict.fromkeys(["epochs=0", "epochs=inf", "epochs=null"], "expected a whole number at least 1"),
    **dict.fromkeys(["seed=-1", "seed=1.5"], "expected a whole number at least 0"),
    "seed=1,2": "a run takes one value",
    "seed=???": "has no value; set it",
    "optimizer.momentum=1": "expected a number at least 0 and below 1",
    "precision.loss_scale=auto": "expected a number above 0, or dynamic",
    "data.mean=[1,2]": "expected three numbers, one per channel",
    # Words.
    "deterministic=maybe": "expected true or false",
    "device=cuda:x": "expected one of auto, cpu, cuda, cuda:N, mps",
    "wandb.project=me/it": "expected 1 to 128 characters without",
    "wandb.tags=[red": "expected a list of texts, such as [a,b]",
    "output_dir=a\0b": "contains a NUL character",
    "output_dir=caf\udce9": "contains a byte that is not UTF-8",
    "optimizer=fast": "optimizer is a group of options; set one of optimizer.name, ",
    # Templates.
    **dict.fromkeys(
        [
            "wandb.name=${oc.env:HOME}",
            "wandb.name=${.mode}",
            "wandb.name=${",
            "wandb.tags=['${oc.env:HOME}']",
        ],
        "${...} may only name another option",
    ),
    "wandb.name=${nope}": "${nope} is no option; ",
    "wandb.name=${wandb.name}": "Recursive interpolation detected",
    # Keys.
    "lr=0.1": "did you mean optimizer.lr?",
    "batch-size=32": "did you mean batch_size?",
    "zzz=1": "no such key",
    "zz\x1b[2J=1": r"zz\x1b[2J: no such key",  # else a name could move the cursor of the terminal
    **dict.fromkeys(["backend", "=native", "--fast"], "expected key=value"),
    "{": "not valid JSON",
    # Options that do not fit each other.
    "schedule.name=multistep": "multistep needs milestones",
    "schedule.milestones=[3]": "schedule.name=cosine has no milestones",
    "data.source=image_folder": "set data.root=PATH",
    "plan.looks=[3,3]": "expected increasing numbers of seeds",
    '{"plan.looks": [3, 6], "plan.max_seeds": 5}': "the last look of plan.looks=[3, 6] needs more seeds",
    '{"optimizer.name": "adam", "optimizer.momentum": 0.9}': "only optimizer.name=sgd has momentum",
    '{"optimizer.nesterov": true, "optimizer.momentum": 0}': "needs optimizer.name=sgd",
    '{"backend": "bf16", "precision.loss_scale": 128}': "backend=bf16 does not scale the loss",
    "tf32=true": "strict fp32 has no TF32; use backend=tf32",
    '{"backend": "apex_o1", "precision.min_loss_scale": 1e6}': "expected at most precision.init_scale=65536",
}


def test_a_wrong_word_gets_a_line_that_says_what_is_allowed(subtests: pytest.Subtests):
    for word, said in WORDS.items():
        with subtests.test(word=word):
            assert said in line_of(config_from_cli, ["--config", "demo", word])


@pytest.mark.parametrize("word", ["seed=" + "9" * 20_000, '{"a":' * 5_000, "[" * 20_000])
def test_the_line_about_a_value_of_any_length_is_short(word: str):
    said = line_of(config_from_cli, [word])
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


FINITE = "the training data have neither NaN nor infinite values"


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        (["data.kwargs.nan=true"], "the training inputs contain NaN; "),
        (["optimizer.lr=3e38"], f"{FINITE}; try a smaller optimizer.lr"),
        # No weight has been updated, so the learning rate is not the cause.
        (["task.loss=./mine.py:nan_loss", "task.metrics=[]"], f"{FINITE}; no update came before"),
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
@examples(30, 400)
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


@examples(30, 400)
def test_no_words_raise_anything_but_a_line(examples: int):
    @settings(max_examples=examples)
    @given(st.lists(WORD, max_size=3))
    def try_one(words: list[str]) -> None:
        assert told(config_from_cli, words) <= 1

    try_one()
