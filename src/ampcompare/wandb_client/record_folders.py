"""The folders in which W&B's client records the starts of a run.

A start of the run `ID` has the folder `run-DATE_TIME-ID` or `offline-run-DATE_TIME-ID`, with the file
`run-ID.wandb`. The time is in seconds: a second start within one second gets the suffix `-1`, the next one
`-2`.
"""

import re
from pathlib import Path


def find_record_files(folder: Path, run_id: str) -> list[Path]:
    """Return the record files of all starts of a run, oldest first.

    Args:
        folder: The folder that has the folder `wandb`.
    """
    folders = find_record_folders(folder, run_id)
    folders.sort(key=lambda path: parse_start(path.name, run_id) or ("", 0))
    files = [path / f"run-{run_id}.wandb" for path in folders]
    return [file for file in files if file.is_file()]


def find_record_folders(folder: Path, run_id: str) -> list[Path]:
    """Return the folders of all starts of a run, by name."""
    top = folder / "wandb"
    paths = sorted(top.iterdir()) if top.is_dir() else []
    return [path for path in paths if run_id in path.name and parse_start(path.name, run_id) is not None]


def parse_start(name: str, run_id: str) -> tuple[str, int] | None:
    """Return time and number of a start within its second, None for a folder of another run.

    >>> parse_start("offline-run-20260102_030405-abc-2", "abc")
    ('20260102_030405', 2)
    """
    match = re.fullmatch(rf"(?:offline-)?run-(.+?)-{re.escape(run_id)}(?:-(\d+))?", name)
    return None if match is None else (match[1], int(match[2] or 0))
