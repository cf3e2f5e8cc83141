"""Parts from outside, by name: what is loaded, what is said of what cannot be, where its own code failed."""

import functools
import hashlib
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from support import warm_python
from support.plugins import BACKEND
from support.quick import QUICK
from support.refusals import line_of

from ampcompare.errors import UserError
from ampcompare.plugins import PluginKind, call, load
from ampcompare.precision import build_precision, get_backend

KIND = PluginKind("part")


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return an empty working directory."""
    folder = tmp_path / "here"
    folder.mkdir()
    monkeypatch.chdir(folder)
    return folder


def get_refusal(text: str, kind: PluginKind = KIND) -> str:
    """Return the reason why a plug-in is refused."""
    begin = f"{kind.option}={text!r}: "
    message = line_of(load, kind, text)
    assert message.startswith(begin)
    return message.removeprefix(begin)


def test_an_object_of_a_module_is_loaded_with_the_hash_of_its_own_file():
    import json.decoder

    found = load(KIND, "json:JSONDecoder")
    assert found.value is json.JSONDecoder
    assert found.source == hashlib.sha256(Path(json.decoder.__file__).read_bytes()).hexdigest()[:16]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("import nowhere_to_be\n", "line 1: ModuleNotFoundError: No module named 'nowhere_to_be'"),
        ("\nraise ValueError('first\\nsecond')\n", "line 2: ValueError: first)"),
        ("raise SystemExit(0)\n", "line 1: SystemExit: 0"),
        ("\n\ndef f(:\n", "line 3: invalid syntax)"),
        ("def __getattr__(name): raise ValueError(name)\n", "line 1: ValueError: A"),
    ],
)
def test_a_file_that_fails_on_import_is_one_line_with_the_line_number(here: Path, content: str, message: str):
    (here / "mine.py").write_text(content)
    before = set(sys.modules)
    assert get_refusal("./mine.py:A").startswith(f"cannot be imported ({message}")
    assert content.startswith("def __getattr__") or not [
        n for n in sys.modules.keys() - before if "mine" in n
    ]


FAILS = """def net(width):
    raise ValueError(f"no width {width}")

def build(num_classes):
    return net(num_classes)

from torch import nn

class Late(nn.Sequential):
    def forward(self, x):
        if self.training:
            net(3)
        return super().forward(x)

def late(num_classes):
    return Late(nn.Flatten(), nn.Linear(3072, num_classes))

class Leaves(nn.Sequential):
    def forward(self, x):
        return exit(0) if self.training else super().forward(x)

def leaves(num_classes):
    return Leaves(nn.Flatten(), nn.Linear(3072, num_classes))
"""


@pytest.mark.parametrize(
    ("name", "code", "first", "message"),
    [
        ("build", 2, 5, "cannot build the network for num_classes=10 (line 2: ValueError: no width 10)"),
        ("late", 1, 12, "line 2: ValueError: no width 3"),  # in the first step
        ("leaves", 1, 20, "line 20: SystemExit: 0"),
    ],
)
def test_the_traceback_of_a_users_file_begins_at_its_own_line(here: Path, name, code, first, message):
    (here / "net.py").write_text(FAILS)
    words = [warm_python.python(), "-m", "ampcompare", "run", *QUICK, f"model.name=./net.py:{name}"]
    done = subprocess.run([*words, "--debug"], capture_output=True, text=True)
    before, _, after = done.stderr.partition("Traceback (most recent call last):\n")
    assert done.returncode == code
    assert before.splitlines()[-1] == f"error: model.name='./net.py:{name}': {message}"
    assert after.startswith(f'  File "{here / "net.py"}", line {first}, in ')
    done = subprocess.run(words, capture_output=True, text=True)
    assert done.returncode == code
    last = done.stderr.splitlines()[-1]
    assert last == f"error: model.name='./net.py:{name}': {message}; --debug shows the traceback"
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("./none.py:A", "there is no file ./none.py in"),
        ("./mine.py:A:B", "expected pkg.mod:Name or ./file.py:Name, with one colon"),
        ("./mine.py:B", "./mine.py has no B; it has A"),
        ("no.such:A", "cannot be imported (ModuleNotFoundError: No module named 'no')"),
        ("nobody", "expected pkg.mod:Name or ./file.py:Name"),
    ],
)
def test_a_name_without_an_object_is_one_line(here: Path, text: str, message: str):
    (here / "mine.py").write_text("class A: pass\n")
    assert get_refusal(text).startswith(message)


# Backends: what a class has to say and to have.
CLASSES = {
    "class Mine: pass": "Mine is not a backend; expected a class that inherits from Precision",
    "Mine = 3": "a int is not a backend; expected a class that",
    f"{BACKEND}\nclass Mine(Precision): metadata = 'mine'": (
        "Mine.metadata is 'mine'; expected metadata = BackendInfo("
    ),
    f"{BACKEND}\nclass Mine(Precision): declares = BackendInfo('m', 'm')": (
        "Mine has `declares`, which nothing reads; write metadata = BackendInfo("
    ),
    f"{BACKEND}\nclass Mine(Precision):\n    def prepare(self, model, optimizer): return model, optimizer": (
        "Mine overrides prepare, which is final, because it also keeps modules in fp32; "
        "override convert instead"
    ),
    f"{BACKEND}\nclass Mine(Precision): '''\\a'''": "description='\\x07': expected a line of at most 100 ch",
    f"{BACKEND}\nclass Mine(Precision): metadata = BackendInfo('native', 'm')": (
        "label='native' is the label of a built-in backend; give Mine another label"
    ),
    f"{BACKEND}\nclass Mine(Precision): metadata = BackendInfo('a\\n', 'm')": (
        "cannot be imported (line 2: ValueError: label='a\\n': expected 1 to 40 letters"
    ),
    f"{BACKEND}\nclass Mine(Precision):\n    metadata = BackendInfo('m', 'm')\n    def __init__(_): pass": (
        "Mine(device, options) cannot be made (TypeError: Mine.__init__() takes 1"
    ),
}


def test_a_class_without_metadata_has_its_name_as_label_and_its_docstring_as_description(here: Path):
    (here / "mine.py").write_text(f"""{BACKEND}
import torch
from ampcompare.precision.half_weights import Float16
from ampcompare.precision.scaled_backend import ScaledPrecision

class Plain(Precision):
    pass

class Own(ScaledPrecision):
    '''Round everything.\n\n    At length.'''

class MyHalf(Float16):
    '''
    fp16 with a twist that takes more words than fit into the legend of a chart {"and more " * 4}
    '''
    input_dtype = torch.bfloat16
""")
    plain, own, half = (get_backend(f"./mine.py:{name}") for name in ("Plain", "Own", "MyHalf"))
    assert (plain.label, plain.description, plain.dtype, plain.scales) == ("Plain", "Plain", "float32", False)
    assert not plain.is_fp32  # what it computes is not known
    assert (own.label, own.description, own.dtype, own.scales) == (
        "Own",
        "Round everything.",
        "float16",
        True,
    )
    assert half.description.startswith(
        "fp16 with a twist that takes more words than fit into the legend of a "
    )
    assert half.description.endswith("...")
    assert len(half.description) == 100
    assert (half.label, half.dtype, half.updates_half) == ("MyHalf", "bfloat16", True)
    assert build_precision("./mine.py:MyHalf").metadata == half
    assert plain.source


def test_a_class_that_is_no_backend_is_one_line_with_the_reason(here: Path, subtests):
    for content, message in CLASSES.items():
        with subtests.test(content=content):
            (here / "mine.py").write_text(f"{content}\n")
            line = line_of(build_precision, "./mine.py:Mine")
            assert line.startswith(f"backend='./mine.py:Mine': {message}")


# Functions, called with the user's arguments.
def plain(num_classes: int, width: int = 8) -> dict[str, int]:
    return {"num_classes": num_classes, "width": width}


def without_classes(width: int) -> dict[str, int]:
    return {"width": width}


def call_function(function: Any, **given: Any) -> Any:
    """Call a function with a user's arguments."""
    return call(function, given, key="model.kwargs", name="it", defaults={"num_classes": 10})


def test_a_function_gets_the_users_arguments_and_the_defaults_that_it_accepts(subtests: pytest.Subtests):
    for function, given, made in [
        (plain, {}, {"num_classes": 10, "width": 8}),
        (plain, {"num_classes": 3, "width": 4}, {"num_classes": 3, "width": 4}),  # the user's own
        (without_classes, {"width": 4}, {"width": 4}),
        (functools.partial(plain, 3), {"width": 2}, {"num_classes": 3, "width": 2}),
        (dict, {"a": 1}, {"num_classes": 10, "a": 1}),  # has no signature
    ]:
        with subtests.test(function=function, given=given, made=made):
            assert call_function(function, **given) == made


@pytest.mark.parametrize(
    ("function", "given", "message"),
    [
        (plain, {"widht": 4}, r"got an unexpected keyword argument 'widht'"),
        (without_classes, {}, r"missing a required argument: 'width'"),
    ],
)
def test_an_unexpected_or_missing_argument_is_one_line_with_the_signature(function, given, message):
    with pytest.raises(UserError, match=rf"^model.kwargs: it\(.*width: int.*\).*: .*{message}"):
        call_function(function, **given)
