"""An analysis in each form that has no page."""

import io

from rich.console import Console

from ampcompare.analysis.analysis import Analysis
from ampcompare.report.exports import to_csv, to_json
from ampcompare.report.text_renderer import print_table, to_markdown


def printed(analysis: Analysis, width: int = 80) -> str:
    """Return what a terminal of this width shows."""
    screen = io.StringIO()
    print_table(analysis, Console(file=screen, width=width))
    return screen.getvalue()


def outputs(analysis: Analysis) -> dict[str, str]:
    """Return all texts by their form."""
    forms = {"terminal": printed, "md": to_markdown, "csv": to_csv, "json": to_json}
    return {name: form(analysis) for name, form in forms.items()}


def flat(text: str) -> str:
    """Return a text without the line breaks and the escapes of its form."""
    return " ".join(text.replace("\\", "").split())
