"""Compare runs: statistics, grouping, comparison and verdict. Renders nothing and never imports torch."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ampcompare.analysis.analysis import analyse_runs as analyse_runs

__all__ = ["analyse_runs"]


def __getattr__(name: str) -> Any:
    """Import `analyse_runs` when it is first used, so that the command line starts without pandas."""
    if name == "analyse_runs":
        from ampcompare.analysis.analysis import analyse_runs

        return analyse_runs
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
