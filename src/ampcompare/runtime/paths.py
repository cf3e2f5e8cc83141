"""Where this package lies, in a checkout or installed, and how its programs are called from there."""

import shlex
import sys
from pathlib import Path

PACKAGE = Path(__file__).resolve().parents[1]
_ABOVE = PACKAGE.parents[1]
# The checkout that this package runs from, None where it was installed from a wheel.
CHECKOUT = _ABOVE if (_ABOVE / "run_experiment.py").is_file() and PACKAGE.parent.name == "src" else None


def shipped(folder: str) -> Path:
    """`configs` or `sweeps`: the checkout's own, or the copy that the wheel carries (setup.py)."""
    return (CHECKOUT or PACKAGE / "shipped") / folder


def find_shipped(name: str, folder: str) -> Path | None:
    """The file that a path, or a name with or without `.yaml`, stands for. Raises OSError and ValueError."""
    places = (Path(name), shipped(folder) / name, shipped(folder) / f"{name}.yaml")
    return next((path for path in places if path.is_file()), None)


def list_shipped(folder: str) -> list[str]:
    """What can be named there."""
    return sorted(path.stem for path in shipped(folder).glob("*.yaml"))


def shell_command(program: str, *words: object) -> str:
    """A command of this environment (`ampcompare`, `wandb`) that works where it is pasted into a shell.

    The program is named by its path, from here if it lies below: the environment need not be activated. Where
    no script of it was installed it is the module of that name.
    """
    script = Path(sys.executable).with_name(program)
    if script.is_file():
        start = [_from_here(script)]
    else:
        start = [_from_here(Path(sys.executable)), "-m", program]
        if program == "ampcompare" and CHECKOUT:  # nothing may be installed at all
            start = ["env", f"PYTHONPATH={CHECKOUT / 'src'}", *start]
    return shlex.join([*start, *map(str, words)])


def _from_here(path: Path) -> str:
    try:
        return str(path.relative_to(Path.cwd()))
    except (ValueError, OSError):  # elsewhere, or the folder has been removed
        return str(path)
