"""An entry of a docstring says more than the name of what it describes.

`runs: The runs.` under Args or Attributes is a plain repetition. Such an entry is left out, or says the unit,
the range, what None means, or when a function is called.
"""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

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


def is_repetition(name: str, text: str) -> bool:
    return words_in(text) - {re.sub(r"(?<=[^s])s$", "", word) for word in FILLERS} <= words_in(name)


def repetitions_in(source: str) -> list[str]:
    return [
        f"{node.lineno}: {node.name}: {name}: {text.strip()}"
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.FunctionDef | ast.ClassDef)
        for name, text in entries_of(ast.get_docstring(node) or "")
        if is_repetition(name, text)
    ]


def test_no_entry_repeats_its_name():
    found = {str(path.relative_to(SOURCE)): repetitions_in(path.read_text()) for path in SOURCE.rglob("*.py")}
    assert not {name: lines for name, lines in found.items() if lines}
    planted = 'def f(path):\n    """Do it.\n\n    Args:\n        {}\n    """\n'
    assert repetitions_in(planted.format("exit_code: The exit code."))  # so it would be found
    assert not repetitions_in(planted.format("exit_code: 0: the run has finished."))
