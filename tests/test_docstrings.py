"""An entry of a docstring says more than the name and the type of what it describes.

`runs: The runs.` under Args or Attributes is a plain repetition. Such an entry is left out, or says the unit,
the range, what None means, or when a function is called.
"""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

SOURCE = Path(__file__).resolve().parents[1] / "src" / "ampcompare"
FILLERS = set(
    "a an as and are be by for in is it its of on or that the their these this to which whose".split()
)
SECTION = re.compile(r"(?:Args|Attributes):")
ENTRY = re.compile(r"    \*{0,2}(\w+): (.*)")


def entries_of(docstring: str) -> Iterator[tuple[str, str]]:
    """Yield name and text of each entry of the sections Args and Attributes."""
    for section in docstring.split("\n\n"):
        head, _, body = section.partition("\n")
        if SECTION.fullmatch(head):
            for entry in re.split(r"\n(?=    \S)", body):
                if match := ENTRY.match(entry):
                    yield match[1], f"{match[2]} {entry[match.end() :]}"


def words_in(text: str) -> set[str]:
    """Return the words of a text or a name in the singular: {"sampled", "weight"} for `sampled_weights`."""
    words = re.findall(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])|\d+", text)
    return {re.sub(r"(?<=[^s])s$", "", word.lower()) for word in words}


def is_repetition(name: str, text: str, type_text: str = "") -> bool:
    known = words_in(name) | words_in(type_text)
    return words_in(text) - {re.sub(r"(?<=[^s])s$", "", word) for word in FILLERS} <= known


def types_in(node: ast.FunctionDef | ast.ClassDef) -> dict[str, str]:
    """Return the annotation of each argument of a function, or of each field of a class, by name."""
    if isinstance(node, ast.FunctionDef):
        arguments = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
        return {one.arg: ast.unparse(one.annotation) for one in arguments if one.annotation}
    types = {}
    for statement in node.body:
        if isinstance(statement, ast.AnnAssign):
            types[ast.unparse(statement.target)] = ast.unparse(statement.annotation)
        elif isinstance(statement, ast.FunctionDef) and statement.name == "__init__":
            types |= types_in(statement)
    return types


def repetitions_in(source: str) -> list[str]:
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            types = types_in(node)
            for name, text in entries_of(ast.get_docstring(node) or ""):
                if is_repetition(name, text, types.get(name, "")):
                    found.append(f"{node.lineno}: {node.name}: {name}: {text.strip()}")
    return found


def in_package(name: str) -> list[str]:
    path = SOURCE / name
    files = [path] if path.is_file() else sorted(path.rglob("*.py"))
    return [
        f"{file.relative_to(SOURCE)}:{line}" for file in files for line in repetitions_in(file.read_text())
    ]


@pytest.mark.parametrize("name", sorted(path.name for path in SOURCE.iterdir() if path.name != "__pycache__"))
def test_no_entry_repeats_name_and_type(name: str):
    repetitions = in_package(name)
    assert not repetitions, "\n".join(repetitions)


@pytest.mark.parametrize(
    ("entry", "expected"),
    [
        ("exit_code: The exit code.", True),
        ("runs: The runs.", True),
        ("path: A Path.", True),
        ("step: The step\n            of the run.", False),
        ("exit_code: 0: the run has finished.", False),
        ("seconds: The longest wait.", False),
        ("rate: None for an optimizer without a rate.", False),
    ],
)
def test_plain_repetitions_are_found(entry: str, expected: bool):
    source = f'def f(path: Path):\n    """Do it.\n\n    Args:\n        {entry}\n    """\n'
    assert bool(repetitions_in(source)) == expected
