"""Where this package is, in a checkout or installed, and how to call its programs."""

import shlex
import shutil
import sys
from pathlib import Path

PACKAGE = Path(__file__).resolve().parents[1]
_ABOVE = PACKAGE.parents[1]
# The checkout that this package runs from, None where it was installed from a wheel.
CHECKOUT = _ABOVE if (_ABOVE / "run_experiment.py").is_file() and PACKAGE.parent.name == "src" else None


def shipped(folder: str) -> Path:
    """Return the folder `configs` or `sweeps`, of the checkout or of the wheel (setup.py copies it)."""
    return (CHECKOUT or PACKAGE / "shipped") / folder


def find_shipped(name: str, folder: str) -> Path | None:
    """Return the file for a path, or for a name with or without `.yaml`; None if there is none.

    The name of a bundled file, such as `demo`, never means a file of the working directory. Such a file is
    `./demo`, or `demo.yaml` if it has this suffix.

    Raises:
        OSError: The file cannot be examined.
        ValueError: The name is not valid.
    """
    names = list_shipped(folder)
    if name not in names and Path(name).is_file():
        return Path(name)
    bundled = name.removesuffix(".yaml")
    return shipped(folder) / f"{bundled}.yaml" if bundled in names else None


def list_shipped(folder: str) -> list[str]:
    """Return the names of the files in a shipped folder, without `.yaml`."""
    return sorted(path.stem for path in shipped(folder).glob("*.yaml"))


def shell_command(program: str, *words: object) -> str:
    """Return a command of this environment that works when it is pasted into a shell.

    If the shell finds this environment's script of the program on PATH, the command is its name. Otherwise
    the script is named by its path, so the environment need not be activated. If no script of the program is
    installed, the command runs the module of that name.

    Args:
        program: Such as `ampcompare` or `wandb`.
    """
    script = Path(sys.executable).with_name(program)
    if script.is_file():
        on_path = shutil.which(program)
        is_on_path = on_path is not None and Path(on_path).resolve() == script.resolve()
        start = [program if is_on_path else _from_here(script)]
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
