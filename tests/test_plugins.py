"""Parts from outside, by name: what is loaded, and one clear line for whatever is wrong with it."""

from __future__ import annotations

import hashlib
import sys
from pathlib import Path

import pytest
from support.plugins import BACKEND, install

from ampcompare.config.load import load_config
from ampcompare.errors import UserError
from ampcompare.plugins import BACKENDS, Door, installed, left_out, load
from ampcompare.precision import REGISTRY, backend_of, build_precision

DOOR = Door("part", "ampcompare.tests")


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty working directory."""
    folder = tmp_path / "here"
    folder.mkdir()
    monkeypatch.chdir(folder)
    return folder


def refusal(text: str, door: Door = DOOR) -> str:
    with pytest.raises(UserError) as caught:
        load(door, text)
    (line,) = caught.value.lines
    assert line.startswith(f"{door.option}={text!r}: ")
    return line.partition(": ")[2]


def test_an_object_of_a_module_comes_by_name():
    assert load(DOOR, "collections.abc:Mapping").value.__name__ == "Mapping"


def test_an_object_of_a_file_comes_with_the_hash_of_what_ran(here: Path):
    for text in ("A = 1\n", "A = 2\n"):  # same size, same second: Python's own cache would not see it
        (here / "mine.py").write_text(text)
        found = load(DOOR, "./mine.py:A")
        assert found.value == int(text[4])
        assert found.source == hashlib.sha256(text.encode()).hexdigest()[:16]


def test_a_file_is_run_once_however_often_it_is_asked_for(here: Path):
    (here / "mine.py").write_text("class A: pass\n")
    assert load(DOOR, "./mine.py:A").value is load(DOOR, f"{here}/mine.py:A").value


def test_two_files_of_one_name_are_two(here: Path):
    (here / "sub").mkdir()
    for path in ("mine.py", "sub/mine.py"):
        (here / path).write_text(f"class A: where = {path!r}\n")
    assert load(DOOR, "./mine.py:A").value.where == "mine.py"
    assert load(DOOR, "./sub/mine.py:A").value.where == "sub/mine.py"


@pytest.mark.parametrize("raised", ["ValueError(name)", "SystemExit(0)"])
def test_a_module_that_cannot_be_asked_is_one_line(here: Path, raised: str):
    (here / "mine.py").write_text(f"def __getattr__(name): raise {raised}\n")
    assert refusal("./mine.py:A").startswith("A cannot be taken from ./mine.py (line 1: ")


def test_a_file_may_lie_outside_the_working_directory(here: Path):
    (here.parent / "shared.py").write_text("A = 1\n")
    assert load(DOOR, "../shared.py:A").value == 1


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (
            "import nowhere_to_be_found\n",
            "line 1: ModuleNotFoundError: No module named 'nowhere_to_be_found'",
        ),
        ("\nraise ValueError('first\\nsecond')\n", "line 2: ValueError: first"),
        ("raise SystemExit(0)\n", "line 1: SystemExit: 0"),
        ("\n\ndef f(:\n", "line 3: invalid syntax"),
        ("\x00", "source code string cannot contain null bytes"),
        ("def f():\n    raise KeyError\nf()\n", "line 2: KeyError"),
        ("raise GeneratorExit\n", "line 1: GeneratorExit"),
        ("class Mute(Exception):\n    __str__ = None\nraise Mute\n", "line 3: Mute"),
        ("\nraise SyntaxError('by hand')\n", "line 2: SyntaxError: by hand"),
        ("compile('x = (', 'other.py', 'exec')\n", "other.py, line 1: '(' was never closed"),
        ("import sys\ndel sys.modules[__name__]\nraise ValueError('first')\n", "line 3: ValueError: first"),
        ("def f(): f()\nf()\n", "line 1: RecursionError: maximum recursion depth exceeded"),
    ],
)
def test_a_file_that_does_not_run_is_one_line_with_the_place(here: Path, content: str, said: str):
    (here / "mine.py").write_text(content)
    before = set(sys.modules)
    line = refusal("./mine.py:A")
    assert line.startswith("cannot be imported (")
    assert said in line
    assert not [name for name in sys.modules.keys() - before if "mine" in name]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("./none.py:A", "./none.py is not there (looked for from"),
        ("./folder.py:A", "./folder.py is a folder; expected ./file.py:Name"),
        ("./folder:A", "./folder is no Python file; expected ./file.py:Name"),
        ("./mine.py:", "expected pkg.mod:Name or ./file.py:Name, with one colon"),
        (":A", "expected pkg.mod:Name or ./file.py:Name, with one colon"),
        (":", "expected pkg.mod:Name or ./file.py:Name, with one colon"),
        ("./mine.py:A:B", "expected pkg.mod:Name or ./file.py:Name, with one colon"),
        ("./mine.py:A()", "expected pkg.mod:Name or ./file.py:Name, with one colon"),
        ("pkg mod:A", "expected pkg.mod:Name or ./file.py:Name, with one colon"),
        ("./mine.py:B", "no B in ./mine.py; it has A"),
        ("./mine.py:A.b", "no A.b in ./mine.py; it has A"),
        ("no.such:A", "cannot be imported (ModuleNotFoundError: No module named 'no')"),
        ("math:Sine", "no Sine in math; it has "),
        ("nobody", "no such entry point in ampcompare.tests; expected pkg.mod:Name or ./file.py:Name"),
    ],
)
def test_a_name_that_leads_nowhere_is_one_line(here: Path, text: str, said: str):
    (here / "folder.py").mkdir()
    (here / "folder").mkdir()
    (here / "mine.py").write_text("class A: pass\n")
    assert refusal(text).startswith(said)


# Backends: what a class has to say and to have.

META = "class Meta(type):\n    def __getattr__(cls, name): return getattr(cls, name)\n"
CLASSES = {
    f"{META}class Mine(metaclass=Meta): pass": "Mine is no backend; expected a class that inherits from",
    "class Endless:\n    def __getattr__(self, name): return getattr(self, name)\nMine = Endless()": (
        "a Endless is no backend; expected a class that inherits from Precision"
    ),
    "class Mine: pass": "Mine is no backend; expected a class that",
    "def Mine(): pass": "a function is no backend; expected a class that",
    "Mine = 3": "a int is no backend; expected a class that",
    f"{BACKEND}\nclass Mine(Precision): pass": "Mine says nothing of itself; give it declares = Backend(",
    f"{BACKEND}\nclass Mine(Precision): declares = Backend('native', 'mine')": "label='native' is that of a",
}


DECLARATIONS = {
    "'a\\x1b[31m', 'mine'": "label='a\\x1b[31m': expected 1 to 40 letters",
    "'a\\n', 'mine'": "label='a\\n': expected 1 to 40 letters",
    "'a' * 41, 'mine'": f"label='{'a' * 41}': expected 1 to 40 letters",
    "'😀', 'mine'": "label='😀': expected 1 to 40 letters",
    "5, 'mine'": "label=5: expected 1 to 40 letters",
    "'mine', 'two\\nlines'": "words='two\\nlines': expected a line of at most 100 characters",
    "'mine', 'w' * 101": f"words='{'w' * 101}': expected a line of",
    "'mine', ''": "words='': expected a line of",
    "'mine', 7": "words=7: expected a line of",
    "'mine', 'mine', 'int8'": "dtype='int8': expected one of float16",
    "'mine', 'mine', ('bfloat16',)": "dtype=('bfloat16',): expected one of float16",
}


def test_what_a_class_says_of_itself_and_cannot_be_is_one_line(here: Path, subtests: pytest.Subtests):
    for declared in DECLARATIONS:
        with subtests.test(declared=declared):
            (here / "mine.py").write_text(
                f"{BACKEND}\nclass Mine(Precision): declares = Backend({declared})\n"
            )
            with pytest.raises(UserError) as caught:
                backend_of("./mine.py:Mine")
            (line,) = caught.value.lines
            said = f"cannot be imported (line 2: ValueError: {DECLARATIONS[declared]}"
            assert line.startswith(f"backend='./mine.py:Mine': {said}")


@pytest.mark.parametrize(
    ("method", "said"),
    [
        ("def __init__(self, device, options, more): pass", "TypeError: Mine.__init__() missing 1 required"),
        ("def __init__(self, device, options): raise OSError('none\\nhere')", "line 4: OSError: none)"),
    ],
)
def test_a_class_that_cannot_be_made_is_one_line(here: Path, method: str, said: str):
    declared = "declares = Backend('mine', 'mine')"
    (here / "mine.py").write_text(f"{BACKEND}\nclass Mine(Precision):\n    {declared}\n    {method}\n")
    with pytest.raises(UserError) as caught:
        build_precision("./mine.py:Mine")
    (line,) = caught.value.lines
    assert line.startswith(f"backend='./mine.py:Mine': Mine(device, options) cannot be made ({said}")


@pytest.mark.parametrize("content", CLASSES, ids=range(len(CLASSES)))
def test_a_class_that_is_no_backend_is_one_line_that_says_what_is_missing(here: Path, content: str):
    (here / "mine.py").write_text(f"{content}\n")
    with pytest.raises(UserError) as caught:
        build_precision("./mine.py:Mine")
    (line,) = caught.value.lines
    assert line.startswith(f"backend='./mine.py:Mine': {CLASSES[content]}")


# Entry points: a distribution is a folder with metadata.


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of installed distributions."""
    folder = tmp_path / "site"
    folder.mkdir()
    monkeypatch.syspath_prepend(str(folder))
    return folder


def test_an_entry_point_is_listed_without_being_imported_and_loaded_by_its_name(site: Path):
    name = install(site, "good-one", "careful", "good_one:Mine", label="careful_one")
    assert "careful" in installed(BACKENDS)
    assert name not in sys.modules
    assert load_config(None, ["backend=careful"]).backend == "careful"
    assert name not in sys.modules
    assert backend_of("careful").label == "careful_one"


def test_one_that_does_not_import_is_a_line_that_names_it_and_the_others_work(site: Path):
    install(site, "good-one", "fine", "good_fine:Mine", label="fine")
    install(site, "bad-one", "broken", "bad_broken:Mine", content="raise OSError('no such library')\n")
    assert backend_of("fine").label == "fine"
    assert refusal("broken", BACKENDS) == (
        "entry point of bad-one (bad_broken:Mine): cannot be imported (OSError: no such library)"
    )


def test_one_that_takes_a_built_in_name_is_said_and_left_out(site: Path):
    install(site, "taker", "native", "taker_native:Mine", label="taker")
    assert left_out(BACKENDS, REGISTRY) == [
        "backend=native is the built-in one; that of taker (taker_native:Mine) is left out"
    ]
    assert backend_of("native") is REGISTRY["native"]


def test_a_name_that_two_distributions_have_is_refused(site: Path):
    install(site, "dist-a", "both", "both_a:Mine", label="a")
    install(site, "dist-b", "both", "both_b:Mine", label="b")
    assert refusal("both", BACKENDS) == (
        "dist-a (both_a:Mine) and dist-b (both_b:Mine) both have it; name one of them in full"
    )


def test_a_distribution_whose_metadata_are_broken_is_said_and_the_others_work(site: Path):
    install(site, "dist-e", "whole", "whole_module:Mine", label="whole")
    install(site, "dist-d", "cut", "cut_module:Mine", label="cut")
    (site / "dist_d-1.0.dist-info" / "entry_points.txt").write_text("[ampcompare.backends]\nno equals sign\n")
    (line,) = left_out(BACKENDS, REGISTRY)
    assert line.startswith("the entry points of dist-d cannot be read (")
    assert backend_of("whole").label == "whole"
    assert build_precision("native").declares.label == "native"


def test_an_entry_point_runs_no_file_of_the_working_directory(site: Path, here: Path):
    (here / "mine.py").write_text("raise OSError\n")
    install(site, "dist-p", "near", "near_module:Mine", label="near")
    (site / "dist_p-1.0.dist-info" / "entry_points.txt").write_text(
        "[ampcompare.backends]\nnear = ./mine.py:A\n"
    )
    assert "names no object; its author has to write pkg.mod:Name" in refusal("near", BACKENDS)


@pytest.mark.parametrize("value", ["no such:Mine", ":Mine", "cut_module:", "a:b:c"])
def test_an_entry_point_that_names_nonsense_is_one_line_that_names_it(site: Path, value: str):
    install(site, "dist-f", "odd", "odd_module:Mine", label="odd")
    (site / "dist_f-1.0.dist-info" / "entry_points.txt").write_text(f"[ampcompare.backends]\nodd = {value}\n")
    assert refusal("odd", BACKENDS).startswith(f"entry point of dist-f ({value}): ")
