"""Run a printed command in a shell, as a user who copies it."""

import os
import subprocess
from pathlib import Path

from support.quick import ROOT


def run_in_shell(command: str, folder: Path, **env: str) -> subprocess.CompletedProcess[str]:
    """Run a command with bash in a folder; PATH has the system's programs only."""
    bare = {"PATH": os.defpath, "HOME": str(folder), "PYTHONPATH": str(ROOT / "src"), **env}
    arguments = ["bash", "-c", command]
    return subprocess.run(arguments, cwd=folder, env=bare, capture_output=True, text=True)
