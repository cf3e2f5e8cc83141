"""AMP Compare: what does mixed precision buy, and can the answer be trusted?"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ampcompare.analysis.analysis import analyse_runs as analyse_runs
    from ampcompare.recorder.recorder import Recorder as Recorder
    from ampcompare.runs.loader import load_runs as load_runs

__version__ = "0.5.0"
__all__ = ["Recorder", "__version__", "analyse_runs", "load_runs"]


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used.

    `Recorder` loads torch and `analyse_runs` loads pandas. `import ampcompare` loads neither, so the command
    line starts quickly.
    """
    if name == "Recorder":
        from ampcompare.recorder.recorder import Recorder

        return Recorder
    if name == "load_runs":
        from ampcompare.runs.loader import load_runs

        return load_runs
    if name == "analyse_runs":
        from ampcompare.analysis.analysis import analyse_runs

        return analyse_runs
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
