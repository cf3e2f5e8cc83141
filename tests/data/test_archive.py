"""Archives of class folders: read whole and in memory, or refused by name."""

import io
import tarfile
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


def add(
    archive: tarfile.TarFile, name: str, data: bytes = b"", kind: bytes = tarfile.REGTYPE, link: str = ""
) -> None:
    member = tarfile.TarInfo(name)
    member.size, member.type, member.linkname = len(data), kind, link
    archive.addfile(member, io.BytesIO(data))


def test_unsafe_tar_member_is_refused_by_name(files, tmp_path, subtests: pytest.Subtests):
    for name, kind, reason in [
        ("/etc/1.png", tarfile.REGTYPE, "has an absolute path"),
        ("train/../../1.png", tarfile.REGTYPE, "has a path with '..' in it"),
        ("..", tarfile.DIRTYPE, "has a path with '..' in it"),
        ("..\\1.png", tarfile.REGTYPE, "has a path with '..' in it"),
        ("C:\\1.png", tarfile.REGTYPE, "has an absolute path"),
        ("train/schwäne/link.png", tarfile.SYMTYPE, "is a link or a special file"),
        ("train/schwäne/.hidden.png", tarfile.SYMTYPE, "is a link or a special file"),
        ("train/schwäne/hard.png", tarfile.LNKTYPE, "is a link or a special file"),
        ("train/schwäne/device.png", tarfile.CHRTYPE, "is a link or a special file"),
        ("train/schwäne/disk.png", tarfile.BLKTYPE, "is a link or a special file"),
        ("train/schwäne/pipe.png", tarfile.FIFOTYPE, "is a link or a special file"),
        ("train/schwäne/\udcff.png", tarfile.REGTYPE, "has a name that is not UTF-8"),
    ]:
        with subtests.test(name=name, kind=kind, reason=reason):
            path = tmp_path / "a.tar.gz"
            with tarfile.open(path, "w:gz", encoding="utf-8", errors="surrogateescape") as archive:
                for good, data in files.items():
                    add(archive, good, data)
                add(archive, name, kind=kind, link="../../etc/passwd")
            text = message_of(path)
            assert reason in text
            assert name.split("/")[-1].encode("ascii", "ignore").decode().strip("\\")[-4:] in text


@pytest.mark.parametrize(
    ("name", "mode", "reason"),
    [
        ("/1.png", 0o100644, "has an absolute path"),
        ("train/../1.png", 0o100644, "has a path with '..' in it"),
        ("train/schwäne/link.png", 0o120777, "is a link or a special file"),
        ("train/schwäne/pipe.png", 0o010644, "is a link or a special file"),
    ],
)
def test_unsafe_zip_member_is_refused_by_name(files, tmp_path, name, mode, reason):
    path = write_archive(tmp_path / "a.zip", files)
    member = zipfile.ZipInfo(name)
    member.external_attr = mode << 16
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr(member, b"../../etc/passwd")
    assert f"archive member {name!r} {reason}: refused" in message_of(path)


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
    assert "corrupt, truncated or no tar or zip archive" in message_of(tmp_path / "a.tar.xz")


def test_empty_archive_says_what_is_expected(tmp_path):
    text = message_of(write_archive(tmp_path / "a.tar.gz", {}))
    assert "there is no folder 'train' in it (found: nothing)" in text


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_archive_cut_anywhere_is_refused_and_never_read_in_part(files, tmp_path, suffix):
    content = write_archive(tmp_path / f"a{suffix}", files).read_bytes()
    cut = tmp_path / f"cut{suffix}"
    end = len(content)
    if suffix == ".tar":  # all after the first block of zeros is padding
        end = content.index(bytes(1024), 10 * 1024)
    for length in [*range(1, end, end // 40), end - 1]:
        cut.write_bytes(content[:length])
        assert "truncated" in message_of(cut), f"cut to {length} of {len(content)} bytes"
