"""AMP Compare: what does mixed precision buy, and can the answer be trusted?"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ampcompare.recorder.recorder import Recorder as Recorder

__version__ = "0.2.0"
__all__ = ["Recorder", "__version__"]


def __getattr__(name: str) -> Any:
    """`Recorder`, when it is asked for: it loads torch."""
    if name == "Recorder":
        from ampcompare.recorder.recorder import Recorder

        return Recorder
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
