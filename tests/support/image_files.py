"""Files of images as folders and archives."""

from __future__ import annotations

import io
import tarfile
import zipfile
from pathlib import Path

Files = dict[str, bytes]


def write_folder(root: Path, files: Files) -> Path:
    for name, data in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    return root


def write_archive(path: Path, files: Files, prefix: str = "") -> Path:
    """Write the files, in an order that is not sorted, as the suffix says."""
    items = [(prefix + name, data) for name, data in reversed(files.items())]
    if path.suffix == ".zip":
        with zipfile.ZipFile(path, "w") as archive:
            for name, data in items:
                archive.writestr(name, data)
        return path
    mode = "w:" + (path.suffix[1:] if path.suffix != ".tar" else "")
    with tarfile.open(path, mode) as archive:  # type: ignore[call-overload]
        for name, data in items:
            member = tarfile.TarInfo(name)
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
    return path
