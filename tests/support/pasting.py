"""A printed command, pasted into a shell that knows nothing of the environment."""

import os
import subprocess
from pathlib import Path

from support.quick import ROOT


def paste(command: str, folder: Path, **env: str) -> subprocess.CompletedProcess[str]:
    """Run the line by bash in the folder, with the system's own programs alone on PATH."""
    bare = {"PATH": os.defpath, "HOME": str(folder), "PYTHONPATH": str(ROOT / "src"), **env}
    words = ["bash", "-c", command]
    return subprocess.run(words, cwd=folder, env=bare, capture_output=True, text=True)
