"""Archives of class folders: read whole and in memory, or refused by name."""

import tarfile
import tempfile
import zipfile
from pathlib import Path

import pytest
import torch
from support.image_files import write_archive

from ampcompare.data.dataset import build_dataset
from ampcompare.errors import UserError

SUFFIXES = [".tar", ".tar.gz", ".tar.bz2", ".tar.xz", ".zip"]


def load(root: Path):
    return build_dataset("image_folder", str(root))


def message_of(root: Path) -> str:
    with pytest.raises(UserError) as error:
        load(root)
    text = str(error.value)
    assert text.startswith(f"data.root={str(root)!r}")
    return text


def test_archive_gives_what_its_folder_gives(folder, files, tmp_path, subtests: pytest.Subtests):
    for prefix in ["", "./", "my data/", "./my data/"]:
        for suffix in SUFFIXES:
            with subtests.test(prefix=prefix, suffix=suffix):
                expected, got = (
                    load(folder),
                    load(write_archive(tmp_path / f"Päckchen 1{suffix}", files, prefix)),
                )
                assert got.classes == expected.classes
                assert got.fingerprint == expected.fingerprint
                for split in ("train", "test"):
                    assert torch.equal(getattr(got, split).images, getattr(expected, split).images)
                    assert torch.equal(getattr(got, split).labels, getattr(expected, split).labels)


def test_kind_is_told_by_content_not_by_name(files, tmp_path):
    archive = write_archive(tmp_path / "a.tar.xz", files)
    assert len(load(archive.rename(tmp_path / "data.bin")).train) == 6


def test_hidden_members_are_ignored(files, tmp_path, caplog):
    files |= {
        "__MACOSX/train/schwäne/._bild.png": b"x",
        "train/.DS_Store": b"x",
        ".hidden/train/a/b.png": b"x",
    }
    assert len(load(write_archive(tmp_path / "a.zip", files, "data/")).train) == 6
    assert not caplog.messages


@pytest.mark.parametrize("kind", ["tar", "zip"])
def test_no_member_reaches_beyond_the_temporary_folder(files, tmp_path, monkeypatch, kind):
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    path = write_archive(tmp_path / f"a.{kind}", files)
    if kind == "tar":
        with tarfile.open(path, "a") as archive:
            member = tarfile.TarInfo("../outside.png")
            archive.addfile(member)
        assert "outside the destination" in message_of(path)
    else:
        with zipfile.ZipFile(path, "a") as archive:
            archive.writestr("../outside.png", b"x")
        load(path)
    assert not list(tmp_path.rglob("outside.png"))


@pytest.mark.parametrize("type_", [tarfile.CHRTYPE, tarfile.FIFOTYPE, tarfile.SYMTYPE])
def test_devices_and_links_out_of_a_tar_are_refused(files, tmp_path, type_):
    path = write_archive(tmp_path / "a.tar", files)
    with tarfile.open(path, "a") as archive:
        member = tarfile.TarInfo("train/schwäne/odd.png")
        member.type, member.linkname = type_, "/etc/passwd"
        archive.addfile(member)
    assert "odd.png" in message_of(path)


@pytest.mark.parametrize("suffix", [".tar.gz", ".tar.bz2", ".tar.xz", ".zip"])
def test_archive_cut_short_is_refused(files, tmp_path, suffix):
    content = write_archive(tmp_path / f"a{suffix}", files).read_bytes()
    cut = tmp_path / f"cut{suffix}"
    for length in (len(content) // 3, len(content) * 2 // 3):
        cut.write_bytes(content[:length])
        assert "give a folder or a tar or zip archive" in message_of(cut)


def test_encrypted_zip_member_is_refused(files, tmp_path):
    path = write_archive(tmp_path / "a.zip", files)
    content = bytearray(path.read_bytes())
    content[content.index(b"PK\x01\x02") + 8] |= 1
    path.write_bytes(content)
    assert "is encrypted" in message_of(path)


@pytest.mark.parametrize(
    "content", [b"", b"hello", bytes(100), b"\x1f\x8b" + bytes(50), b"PK\x03\x04", b"PK\x05\x06"]
)
def test_file_that_is_no_archive_is_named(tmp_path, content):
    (tmp_path / "a.tar.xz").write_bytes(content)
    assert "no tar or zip archive" in message_of(tmp_path / "a.tar.xz")


def test_empty_archive_says_what_is_expected(tmp_path):
    text = message_of(write_archive(tmp_path / "a.tar.gz", {}))
    assert "there is no folder 'train' in it (found: nothing)" in text
