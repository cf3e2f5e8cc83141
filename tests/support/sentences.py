"""The sentences that users read, collected from the source: string literals, f-strings, template text.

Docstrings, annotations, assertions and texts of other languages (regular expressions, queries, HTML) are left
out. A placeholder of an f-string or a template is shown as its expression in braces.
"""

import ast
import html
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

MIN_WORDS = 3
MAX_EXPRESSION_CHARS = 40  # a longer expression is shown as {…}
WORD = re.compile(r"[^\W\d_]{2,}|\b[aAI]\b")
PLACEHOLDER = re.compile(r"\{[^{}]*\}")
# Regular expressions, GraphQL, HTML, security policies, scripts, font lists.
OTHER_LANGUAGE = re.compile(
    r"\(\?|\\[bswd.]|\[\^|-src\b|^\s*<|^\s*(?:query|mutation|fragment)\b|\$\w+:|#!/|===|sans-serif|\w;$"
)
BLOCKS = (
    "html|head|title|body|main|header|footer|section|div|p|ul|li|h1|h2|table|thead|tbody|tfoot|tr|th|td|"
    "figure|figcaption|details|summary|noscript|small|button"
)
BLOCK_TAG = re.compile(rf"</?(?:{BLOCKS})\b[^>]*>")
UNSEEN = re.compile(r"<(style|script|svg)\b.*?</\1>", re.DOTALL)
TAG = re.compile(r"<[^>]+>")


def sentences_of(files: Iterable[Path], root: Path) -> dict[str, list[str]]:
    """Return the sentences of each file, in the order of the source, by path relative to `root`.

    Args:
        files: Python modules, Jinja templates (`.j2`) and scripts of a page (`.js`).
        root: The folder that paths are relative to.
    """
    readers = {".py": python_sentences, ".j2": template_sentences, ".js": script_sentences}
    found = {
        file.relative_to(root).as_posix(): [*dict.fromkeys(readers[file.suffix](file.read_text("utf-8")))]
        for file in sorted(files)
        if file.suffix in readers
    }
    return {name: texts for name, texts in found.items() if texts}


def python_sentences(source: str) -> list[str]:
    """Return the sentences in the literals of a Python module.

    >>> python_sentences('def f(n):\\n    "A docstring here."\\n    return f"There are {n} runs"')
    ['There are {n} runs']
    """
    return [text for text in map(_one_line, _literals(ast.parse(source))) if is_sentence(text)]


def is_sentence(text: str, min_words: int = MIN_WORDS) -> bool:
    """Return whether a text has enough words outside its placeholders, and is in English.

    >>> is_sentence("{name}: no run has it"), is_sentence("peak memory"), is_sentence("(?:a) (?:regular) or")
    (True, False, False)
    """
    words = WORD.findall(PLACEHOLDER.sub(" ", text))
    return len(words) >= min_words and " " in text.strip() and not OTHER_LANGUAGE.search(text)


def _literals(node: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.Assert | ast.AnnAssign | ast.arg) and not getattr(node, "value", None):
        return
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):  # a docstring
        return
    if isinstance(node, ast.JoinedStr):
        yield "".join(map(_part, node.values))
        for value in node.values:  # a placeholder may contain literals of its own
            if isinstance(value, ast.FormattedValue):
                yield from _literals(value.value)
        return
    if isinstance(node, ast.Constant):
        if isinstance(node.value, str):
            yield node.value
        return
    if isinstance(node, ast.Call) and getattr(node.func, "attr", "") == "split":  # a list of names
        return
    for name, field in ast.iter_fields(node):
        if name in ("annotation", "returns"):
            # Help texts of options are in `Annotated[type, typer.Option(help=...)]`.
            calls = (n for n in ast.walk(field) if isinstance(n, ast.Call)) if field else ()
            for call in calls:
                yield from _literals(call)
            continue
        for child in field if isinstance(field, list) else [field]:
            if isinstance(child, ast.AST):
                yield from _literals(child)


def _part(node: ast.expr) -> str:
    """Return a part of an f-string: its text, or the expression of a placeholder in braces."""
    if isinstance(node, ast.Constant):
        return str(node.value)
    assert isinstance(node, ast.FormattedValue)
    is_nested = any(isinstance(inner, ast.JoinedStr) for inner in ast.walk(node.value))
    expression = "…" if is_nested else ast.unparse(node.value)  # Python 3.12 quotes nested ones differently
    return f"{{{expression if len(expression) <= MAX_EXPRESSION_CHARS else '…'}}}"


def template_sentences(source: str) -> list[str]:
    """Return the visible text of a Jinja template, a line for each block of the page.

    >>> template_sentences('<p class="soft">{{ plural(n, "run") }}{% if n %}, <b>finished</b>{% endif %}</p>')
    ['{plural(n, "run")}, finished']
    """
    text = re.sub(r"\{#.*?#\}", "", UNSEEN.sub("", source), flags=re.DOTALL)
    labels = re.findall(r'(?:aria-label|title)="([^"{]+)"', text)
    text = re.sub(r"\{%.*?%\}", "", text, flags=re.DOTALL)
    text = re.sub(r"\{\{\s*(.*?)\s*\}\}", _expression, text, flags=re.DOTALL)
    blocks = map(_one_line, html.unescape(TAG.sub("", BLOCK_TAG.sub("\n", text))).split("\n"))
    return [block for block in (*blocks, *labels) if WORD.search(PLACEHOLDER.sub("", block))]


def _expression(match: re.Match[str]) -> str:
    return f"{{{match[1] if len(match[1]) <= MAX_EXPRESSION_CHARS and '{' not in match[1] else '…'}}}"


def script_sentences(source: str) -> list[str]:
    """Return the sentences in the double-quoted literals of a script."""
    return [text for text in re.findall(r'"([^"\n]*)"', source) if is_sentence(text)]


def _one_line(text: str) -> str:
    return " ".join(text.split())
