"""The comparison of runs as a page, charts, tables and a verdict. Reads records; never imports torch."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ampcompare.report.analysis.analysis import analyse_runs as analyse_runs

__all__ = ["analyse_runs"]


def __getattr__(name: str) -> Any:
    """`analyse_runs`, when it is asked for: the command line has its options without pandas."""
    if name == "analyse_runs":
        from ampcompare.report.analysis.analysis import analyse_runs

        return analyse_runs
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
