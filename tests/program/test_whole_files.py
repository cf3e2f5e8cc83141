"""A file is whole or as it was; a folder that cannot be written to is said before anything starts."""

from __future__ import annotations

from pathlib import Path

import pytest

from ampcompare.errors import UserError
from ampcompare.program.files import make_folder, replacing


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_the_new_file_takes_the_old_ones_place_at_the_end(tmp_path: Path):
    path = tmp_path / "x"
    path.write_bytes(b"old")
    with replacing(path) as file:
        file.write(b"new")
        file.flush()
        assert path.read_bytes() == b"old"
    assert path.read_bytes() == b"new"
    assert names(tmp_path) == ["x"]


@pytest.mark.parametrize("problem", [OSError(28, "No space left on device"), KeyboardInterrupt()])
def test_what_goes_wrong_leaves_the_old_file_alone(tmp_path: Path, problem: BaseException):
    path = tmp_path / "x"
    path.write_bytes(b"old")

    def write() -> None:
        with replacing(path) as file:
            file.write(b"half")
            raise problem

    with pytest.raises(type(problem)):
        write()
    assert path.read_bytes() == b"old"
    assert names(tmp_path) == ["x"]


@pytest.mark.parametrize(
    ("name", "why"), [("taken", "File exists"), ("taken/below", "Not a directory"), ("a\0b", "null byte")]
)
def test_a_folder_that_cannot_be_is_said_in_a_line_with_its_option(tmp_path: Path, name: str, why: str):
    (tmp_path / "taken").write_text("a file")
    with pytest.raises(UserError, match=rf"^--out here: cannot be written to \(.*{why}.*\); name another"):
        make_folder(tmp_path / name, "--out here")
