"""What real people get wrong, each with the exact line that they see."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.properties import examples
from support.quick import ROOT

from ampcompare.config.arguments import parse
from ampcompare.config.load import LEAVES, load_config
from ampcompare.errors import UserError
from ampcompare.program.place import as_typed
from ampcompare.sweeps.file.sweep import read_sweep

DOORS = ", pkg.mod:Name, ./file.py:Name"
BACKENDS = (
    f"expected one of none, native, native_bf16, apex_o1, apex_o1_bf16, apex_o2, fp16, bf16, bf16_sr{DOORS}"
)
HELP = f"{as_typed('ampcompare', 'run', '--help-all')} lists every key"
WHOLE = "expected a whole number at least 1"

WORDS = {
    # Backends, as other libraries call them.
    "backend=O1": f"backend='O1': {BACKENDS}; did you mean apex_o1?",
    "backend=O0": f"backend='O0': {BACKENDS}; did you mean none?",
    "backend=O2": f"backend='O2': {BACKENDS}; did you mean apex_o2?",
    "backend=O3": f"backend='O3': {BACKENDS}; did you mean fp16?",
    "backend=amp": f"backend='amp': {BACKENDS}; did you mean native?",
    "backend=fp16-mixed": f"backend='fp16-mixed': {BACKENDS}; did you mean native?",
    "backend=16-mixed": f"backend='16-mixed': {BACKENDS}; did you mean native?",
    "backend=bf16-mixed": f"backend='bf16-mixed': {BACKENDS}; did you mean native_bf16?",
    "backend=bf16-true": f"backend='bf16-true': {BACKENDS}; did you mean bf16?",
    "backend=bfloat16": f"backend='bfloat16': {BACKENDS}; did you mean bf16?",
    "backend=torch.amp": f"backend='torch.amp': {BACKENDS}; did you mean native?",
    "backend=autocast": f"backend='autocast': {BACKENDS}; did you mean native?",
    "backend=fp32": f"backend='fp32': {BACKENDS}; did you mean none?",
    "backend=32": f"backend='32': {BACKENDS}; did you mean none?",
    "backend=apex": f"backend='apex': {BACKENDS}; did you mean apex_o1?",
    "backend=apex-o1": f"backend='apex-o1': {BACKENDS}; did you mean apex_o1?",
    "backend=apex_01": f"backend='apex_01': {BACKENDS}; did you mean apex_o1?",
    "backend=half": f"backend='half': {BACKENDS}; did you mean fp16?",
    "backend=nativ": f"backend='nativ': {BACKENDS}; did you mean native?",
    "backend=NATIVE": f"backend='NATIVE': {BACKENDS}; did you mean native?",
    "backend=": f"backend='': {BACKENDS}",
    "backend=native,apex_o1": f"backend='native,apex_o1': {BACKENDS}",
    "backend=[native,apex_o1]": f"backend='[native,apex_o1]': {BACKENDS}",
    # Numbers.
    "optimizer.lr=1e-1x": "optimizer.lr='1e-1x': expected a number above 0",
    "optimizer.lr=0": "optimizer.lr='0': expected a number above 0",
    "optimizer.lr=-0.1": "optimizer.lr='-0.1': expected a number above 0",
    "optimizer.lr=0,1": "optimizer.lr='0,1': expected a number above 0",
    "optimizer.lr=nan": "optimizer.lr='nan': expected a number above 0",
    "optimizer.lr=1/10": "optimizer.lr='1/10': expected a number above 0",
    "optimizer.lr=": "optimizer.lr='': expected a number above 0",
    "batch_size=0": f"batch_size='0': {WHOLE}",
    "batch_size=12.5": f"batch_size='12.5': {WHOLE}",
    "batch_size=128x": f"batch_size='128x': {WHOLE}",
    "batch_size=auto": f"batch_size='auto': {WHOLE}",
    "epochs=-1": f"epochs='-1': {WHOLE}",
    "epochs=0": f"epochs='0': {WHOLE}",
    "epochs=inf": f"epochs='inf': {WHOLE}",
    "epochs=ten": f"epochs='ten': {WHOLE}",
    "epochs=null": f"epochs='null': {WHOLE}",
    "max_steps=0": f"max_steps='0': {WHOLE}, or null",
    "seed=-1": "seed='-1': expected a whole number at least 0 and at most 9.22337e+18",
    "seed=1_000": "seed='1_000': expected a whole number at least 0 and at most 9.22337e+18",
    "optimizer.momentum=1": "optimizer.momentum='1': expected a number at least 0 and below 1",
    "optimizer.weight_decay=-5e-4": "optimizer.weight_decay='-5e-4': expected a number at least 0",
    "precision.loss_scale=auto": "precision.loss_scale='auto': expected a number above 0, or dynamic",
    "precision.loss_scale=-1": "precision.loss_scale='-1': expected a number above 0, or dynamic",
    "training.accumulate=0": f"training.accumulate='0': {WHOLE}",
    "training.clip_norm=0": "training.clip_norm='0': expected a number above 0, or null",
    "training.label_smoothing=1": "training.label_smoothing='1': expected a number at least 0 and below 1",
    # Words.
    "deterministic=maybe": "deterministic='maybe': expected true or false",
    "tf32=2": "tf32='2': expected true or false",
    "device=gpu": "device='gpu': expected one of auto, cpu, cuda, cuda:N, mps; did you mean cuda?",
    "device=0": "device='0': expected one of auto, cpu, cuda, cuda:N, mps; did you mean cuda:0?",
    "device=cuda:x": "device='cuda:x': expected one of auto, cpu, cuda, cuda:N, mps",
    "memory_format=nhwc": (
        "memory_format='nhwc': expected one of auto, contiguous, channels_last; did you mean channels_last?"
    ),
    "execution=torch.compile": (
        "execution='torch.compile': expected one of eager, compile, cuda_graph, compile_graph; did you mean "
        "compile?"
    ),
    "optimizer.name=SGD": "optimizer.name='SGD': expected one of sgd, adam, adamw; did you mean sgd?",
    "optimizer.name=lamb": "optimizer.name='lamb': expected one of sgd, adam, adamw",
    "schedule.name=linear": "schedule.name='linear': expected one of cosine, constant, multistep",
    "data.source=cifar": (
        "data.source='cifar': expected one of cifar10, cifar100, image_folder, synthetic, pkg.mod:Name, "
        "./file.py:Name; did you mean cifar10?"
    ),
    "data.source=imagenet": (
        f"data.source='imagenet': expected one of cifar10, cifar100, image_folder, synthetic{DOORS}"
    ),
    "model.name=resnet-50": (
        "model.name='resnet-50': expected one of resnet50, resnet18, resnet152, resnet20, tiny, "
        "timm:NAME, torchvision:NAME, pkg.mod:Name, ./file.py:Name; did you mean resnet50?"
    ),
    "wandb.mode=off": (
        "wandb.mode='off': expected one of auto, online, offline, disabled; did you mean disabled?"
    ),
    "wandb.project=me/it": "wandb.project='me/it': expected 1 to 128 characters without / \\ # ? % :",
    "wandb.tags=red": "wandb.tags='red': expected a list of texts, such as [a,b]",
    "data.mean=0.5": "data.mean=0.5: expected a list of numbers, such as [0.5,0.5,0.5]",
    "data.std=[1,1,0]": "data.std=[1.0, 1.0, 0.0]: expected three numbers above 0, one per channel",
    "resume=yes": "resume='yes': expected one of auto, never; did you mean auto?",
    "resume=last.pt": "resume='last.pt': expected one of auto, never",
    "checkpoint.every_epochs=0.5": f"checkpoint.every_epochs='0.5': {WHOLE}, or null",
    "checkpoint.every_minutes=0": "checkpoint.every_minutes='0': expected a number above 0, or null",
    "output_dir=a\0b": "output_dir='a\\x00b': a NUL character is in it; expected a text",
    "output_dir=caf\udce9": "output_dir='caf\\udce9': a byte that is not UTF-8 is in it; expected a text",
    # Keys.
    "lr=0.1": "lr: no such key; did you mean optimizer.lr?",
    "momentum=0.9": "momentum: no such key; did you mean optimizer.momentum?",
    "batchsize=32": "batchsize: no such key; did you mean batch_size?",
    "batch-size=32": "batch-size: no such key; did you mean batch_size?",
    "bakend=native": "bakend: no such key; did you mean backend?",
    "loss_scale=128": "loss_scale: no such key; did you mean precision.loss_scale?",
    "optimizer.learning_rate=1": "optimizer.learning_rate: no such key; did you mean optimizer.lr?",
    "amp=true": "amp: no such key; did you mean backend?",
    "opt_level=O1": "opt_level: no such key; did you mean backend?",
    "num_epochs=3": "num_epochs: no such key; did you mean epochs?",
    "zzz=1": f"zzz: no such key; {HELP}",
    "backend.name=native": "backend.name: no such key; did you mean backend?",
    "backend": "'backend': expected key=value, such as backend=native or optimizer.lr=0.05",
    "native": "'native': expected key=value, such as backend=native or optimizer.lr=0.05",
    "-v": "'-v': expected key=value, such as backend=native or optimizer.lr=0.05",
    "=native": "'=native': expected key=value, such as backend=native or optimizer.lr=0.05",
    "--fast": "'--fast': expected key=value, such as backend=native or optimizer.lr=0.05",
    "--backend": f"--backend: expected --backend=VALUE, {BACKENDS.removeprefix('expected ')}",
    "--config": "--config: expected a name or a path after it, such as --config demo",
    "--config=nowhere": (
        "--config 'nowhere': no such file; expected a path or one of demo, reference, strong"
    ),
    "nowhere.json": "nowhere.json: cannot be read (No such file or directory)",
    "optimizer=fast": (
        "optimizer='fast': a group of options; set one of them: name, lr, momentum, nesterov, weight_decay, "
        "fused"
    ),
    "execution=graphs": "execution='graphs': expected one of eager, compile, cuda_graph, compile_graph",
    "data.mean=[1,2]": "data.mean=[1.0, 2.0]: expected three numbers, one per channel",
    "optimizer.lr=inf": "optimizer.lr='inf': expected a number above 0",
    "seed=1.5": "seed='1.5': expected a whole number at least 0 and at most 9.22337e+18",
    # Together.
    "schedule.name=multistep": (
        "schedule.name='multistep': needs schedule.milestones, epochs such as [100,150]; give them"
    ),
    "schedule.milestones=[3]": (
        "schedule.milestones=[3.0]: schedule.name=cosine has none; "
        "leave it out, or use schedule.name=multistep"
    ),
    "optimizer.nesterov=true": (
        "optimizer.nesterov=true: needs optimizer.name=sgd and optimizer.momentum above 0; set them"
    ),
    "data.source=image_folder": (
        "data.root=None: data.source=image_folder needs a folder or archive with train/<class>/* and "
        "test/<class>/*; set data.root=PATH"
    ),
    # What OmegaConf would resolve.
    **{
        f"wandb.name={text}": (
            f"wandb.name={text!r}: of ${{...}} only another option's key is understood, such as ${{backend}}"
        )
        for text in (
            "${oc.env:HOME}",
            "${oc.decode:'[1]'}",
            "${${wandb.group}:HOME}",
            "${.mode}",
            "${data[mean]}",
            "${",
            "a-${}",
            "\\${backend}",
        )
    },
    "wandb.tags=['${oc.env:HOME}']": (
        "wandb.tags=['${oc.env:HOME}']: of ${...} only another option's key is understood, such as ${backend}"
    ),
    "wandb.name=${nope}": ("wandb.name='${nope}': Interpolation key 'nope' not found; write the value out"),
    "wandb.name=${wandb.name}": (
        "wandb.name='${wandb.name}': Recursive interpolation detected; write the value out"
    ),
    "wandb.name=${wandb}": (
        "wandb.name='${wandb}': Interpolation to parent node detected; write the value out"
    ),
    "wandb.name=${optimizer}": "wandb.name='${optimizer}': expected a text, or null",
    "wandb.tags=${backend}": "wandb.tags='${backend}': expected a list of texts, such as [a,b]",
    "epochs=${backend}": f"epochs='${{backend}}': {WHOLE}",
    "optimizer.lr=${optimizer.weight_decay}": (
        "optimizer.lr='${optimizer.weight_decay}': expected a number above 0"
    ),
    "backend=${wandb.mode}": f"backend='${{wandb.mode}}': {BACKENDS}",
    "optimizer=${schedule}": (
        "optimizer='${schedule}': a group of options; set one of them: name, lr, momentum, nesterov, "
        "weight_decay, fused"
    ),
    "seed=???": ("seed=???: has to be given; expected a whole number at least 0 and at most 9.22337e+18"),
    "wandb.tags=[a,'???']": (
        "wandb.tags=['a', '???']: has to be given; expected a list of texts, such as [a,b]"
    ),
    # What OmegaConf's nodes would take.
    "deterministic=y": "deterministic='y': expected true or false",
    "epochs=true": f"epochs='true': {WHOLE}",
    "epochs=1.5": f"epochs='1.5': {WHOLE}",
    "optimizer.lr=true": "optimizer.lr='true': expected a number above 0",
    f"optimizer.lr={'9' * 400}": f"optimizer.lr='{'9' * 400}': expected a number above 0",
    "data.mean=[0.5,1,true]": "data.mean=[0.5, 1, True]: expected a list of numbers, such as [0.5,0.5,0.5]",
    "wandb.tags=[[a],b]": "wandb.tags=[['a'], 'b']: expected a list of texts, such as [a,b]",
}


def test_a_wrong_word_gets_exactly_this_line(subtests: pytest.Subtests):
    for word in WORDS:
        with subtests.test(word=word):
            with pytest.raises(UserError) as caught:
                parse(["--config", "demo", word])
            assert str(caught.value) == WORDS[word]


def test_a_sweep_file_as_config_and_a_config_as_sweep_say_what_to_do(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(ROOT)
    with pytest.raises(
        UserError, match=r"this is a sweep, not a config; run it with: .*ampcompare sweep sweeps/batch_size"
    ):
        load_config("sweeps/batch_size.yaml")
    with pytest.raises(UserError, match=r"not a sweep.*ampcompare run --config configs/demo.yaml"):
        read_sweep("configs/demo.yaml")


def test_a_tab_in_yaml_is_named_with_its_line(tmp_path: Path):
    path = tmp_path / "mine.yaml"
    path.write_text("optimizer:\n\tlr: 0.1\n")
    with pytest.raises(UserError) as caught:
        load_config(str(path))
    assert str(caught.value) == (
        f"{path}, line 2: not valid YAML: found character that cannot start any token"
    )


def test_brackets_without_end_are_a_line_and_not_the_end_of_the_process(tmp_path: Path):
    path = tmp_path / "mine.yaml"
    path.write_text("wandb: " + "[" * 100_000)
    with pytest.raises(UserError, match="cannot be read as YAML: nested deeper than 50 levels"):
        load_config(str(path))


# Fuzz: whatever the input, a config, a sweep, or UserError with printable text; never another exception.

CONFIG = (ROOT / "configs" / "reference.yaml").read_bytes()
SWEEP = (ROOT / "sweeps" / "learning_rate.yaml").read_bytes()
HOSTILE = [
    "null",
    "[]",
    "{}",
    "- a",
    "!!python/object:os.system x",
    "&a [*a]",
    "1e999",
    "\0",
    "é",
    ": :",
    "${x}",
    "${seed}",
    "${wandb.name}",
    "???",
    "<<: *a",
]
PIECES = st.one_of(
    st.binary(max_size=8),
    st.sampled_from(
        [text.encode() for text in [*HOSTILE, *LEAVES, "parameters:", "values:", "method:", "\t", "\n  "]]
    ),
)


def mutate(data: st.DataObject, content: bytes) -> bytes:
    found = bytearray(content)
    for _ in range(data.draw(st.integers(0, 4))):
        place = data.draw(st.integers(0, len(found)))
        found[place : place + data.draw(st.integers(0, 12))] = data.draw(PIECES)
    return bytes(found)


def assert_told(problem: UserError, lines: int | None = None) -> None:
    assert str(problem)
    assert lines is None or len(str(problem).split("\n")) == lines
    assert all(line.isprintable() for line in str(problem).split("\n")), str(problem)


def check(
    examples: int, given_as: st.SearchStrategy[Any], use: Callable[[Any], object], lines: int | None
) -> None:
    """Nothing but UserError comes of any use, and that has so many printable lines."""

    @settings(max_examples=examples)
    @given(given_as)
    def try_one(one: Any) -> None:
        try:
            use(one)
        except UserError as problem:
            assert_told(problem, lines)

    try_one()


@examples(150, 1500)
def test_no_config_file_raises_anything_but_a_line(tmp_path: Path, examples: int):
    path = tmp_path / "mine.yaml"

    def use(data: st.DataObject) -> None:
        path.write_bytes(mutate(data, CONFIG))
        load_config(str(path))

    check(examples, st.data(), use, lines=1)


@examples(150, 1500)
def test_no_sweep_file_raises_anything_but_lines(tmp_path: Path, examples: int):
    path = tmp_path / "mine.yaml"

    def use(data: st.DataObject) -> None:
        path.write_bytes(mutate(data, SWEEP))
        read_sweep(path)

    check(examples, st.data(), use, lines=None)


VALUES = st.one_of(
    st.text(max_size=12),
    st.sampled_from(HOSTILE),
    st.integers().map(str),
    st.floats().map(str),
    st.recursive(
        st.none() | st.booleans() | st.text(max_size=4), lambda x: st.lists(x, max_size=3), max_leaves=6
    ).map(str),
)


ANY_WORDS = st.lists(
    st.tuples(
        st.sampled_from(["", "--", "+", "++"]),
        st.sampled_from([*LEAVES, "optimizer", "x"]) | st.text(max_size=6),
        VALUES,
    ).map(lambda parts: f"{parts[0]}{parts[1]}={parts[2]}")
    | st.text(max_size=12),
    max_size=3,
)


@examples(150, 1500)
def test_no_words_raise_anything_but_a_line(examples: int):
    check(examples, ANY_WORDS, parse, lines=1)
