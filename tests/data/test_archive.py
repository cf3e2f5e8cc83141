"""Archives of class folders: read whole and in memory, or refused by name."""

import io
import os
import random
import subprocess
import sys
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


def test_nothing_is_written_beside_the_cache(files, tmp_path, cache_folder, monkeypatch):
    archive = write_archive(tmp_path / "a.tar.gz", files)
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    load(archive)
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["a.tar.gz", "here"]
    assert len(list(cache_folder.iterdir())) == 1


def test_hidden_members_are_ignored(files, tmp_path, caplog):
    files |= {
        "__MACOSX/train/schwäne/._bild.png": b"x",
        "train/.DS_Store": b"x",
        ".hidden/train/a/b.png": b"x",
    }
    assert len(load(write_archive(tmp_path / "a.zip", files, "data/")).train) == 6
    assert not caplog.messages


def test_a_member_that_comes_twice_counts_as_its_last(files, png, tmp_path):
    path = tmp_path / "a.tar"
    with tarfile.open(path, "w") as archive:
        for name, data in [("train/schwäne/bild 0 ä.png", png(1, 3, 3)), *files.items()]:
            add(archive, name, data)
    assert load(path).train.images.shape == (6, 3, 6, 5)


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


@pytest.mark.parametrize("suffix", [".tar.gz", ".tar.xz", ".zip"])
def test_oversized_member_is_refused_before_it_unfolds(files, tmp_path, suffix):
    path = tmp_path / f"bomb{suffix}"
    big = {"train/schwäne/big.png": bytes(65 * 2**20)}
    if suffix == ".zip":
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr("train/schwäne/big.png", big["train/schwäne/big.png"])
    else:
        write_archive(path, big)
    assert path.stat().st_size < 2**20
    assert "archive member 'train/schwäne/big.png' is larger than 64 MiB" in message_of(path)


@pytest.mark.parametrize("kind", [tarfile.XHDTYPE, tarfile.GNUTYPE_LONGNAME])
def test_oversized_header_is_refused(tmp_path, kind):
    member = tarfile.TarInfo("header")
    member.size, member.type = 5 * 2**30, kind
    (tmp_path / "a.tar").write_bytes(member.tobuf(tarfile.GNU_FORMAT) + bytes(1024))
    assert "a header of 5368709" in message_of(tmp_path / "a.tar")


def test_sparse_member_is_refused(tmp_path):
    member = tarfile.TarInfo("train/a/1.png")
    member.type = tarfile.GNUTYPE_SPARSE
    (tmp_path / "a.tar").write_bytes(member.tobuf(tarfile.GNU_FORMAT) + bytes(1024))
    assert "archive member 'train/a/1.png' is a link or a special file" in message_of(tmp_path / "a.tar")


def test_more_images_than_memory_are_refused(files, tmp_path, monkeypatch):
    monkeypatch.setattr("ampcompare.data.sources.archive.memory_budget_bytes", lambda: 500)
    assert "its images take more than" in message_of(write_archive(tmp_path / "a.tar", files))


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


@pytest.mark.parametrize("suffix", [".tar.gz", ".tar.bz2", ".tar.xz", ".zip"])
def test_archive_damaged_anywhere_is_refused_or_gives_the_same_data(files, tmp_path, suffix, monkeypatch):
    monkeypatch.setenv("AMPCOMPARE_CACHE", "/dev/null/none")
    path = write_archive(tmp_path / f"a{suffix}", files)
    content = path.read_bytes()
    expected = load(path).fingerprint
    rng = random.Random(0)
    refused = 0
    for _ in range(150):
        damaged = bytearray(content)
        damaged[rng.randrange(len(content))] ^= 1 << rng.randrange(8)
        path.write_bytes(damaged)
        try:
            assert load(path).fingerprint == expected
        except UserError:
            refused += 1
    assert refused > 100


def test_zip_name_damaged_in_the_directory_does_not_lose_the_image(files, tmp_path):
    path = write_archive(tmp_path / "a.zip", files)
    content = bytearray(path.read_bytes())
    content[content.rindex(b".png") + 3] ^= 1
    path.write_bytes(content)
    assert "corrupt, truncated or no tar or zip archive (File name in directory" in message_of(path)


def test_zip_directory_damaged_so_that_members_vanish_is_refused(files, tmp_path):
    path = write_archive(tmp_path / "a.zip", files)
    content = bytearray(path.read_bytes())
    last = content.rindex(b"PK\x01\x02")
    before_last = content.rindex(b"PK\x01\x02", 0, last)
    content[before_last + 32 : before_last + 34] = b"\xff\x00"  # a long comment swallows the next entry
    path.write_bytes(content)
    assert "corrupt, truncated or no tar or zip archive (9 of 10 members" in message_of(path)


def test_zip_of_more_members_than_its_old_end_record_can_count(files, tmp_path):
    path = write_archive(tmp_path / "a.zip", {f"{i}.txt": b"" for i in range(66_000)})
    with zipfile.ZipFile(path, "a") as archive:
        for name, data in files.items():
            archive.writestr(name, data)
    assert len(load(path).train) == 6


def test_damaged_tar_header_is_not_taken_for_the_end(files, tmp_path):
    path = write_archive(tmp_path / "a.tar", files)
    content = bytearray(path.read_bytes())
    place = content.index(b"ustar", 3000)
    content[place - 100] ^= 0xFF
    path.write_bytes(content)
    assert "corrupt, truncated or no tar or zip archive (bad checksum" in message_of(path)


LOCALE_CHECK = """
import sys
from ampcompare.data.dataset import build_dataset
print(ascii(build_dataset("image_folder", sys.argv[1]).classes))
"""


def test_names_mean_the_same_under_a_locale_that_is_not_utf8(folder, files, tmp_path):
    environment = {**os.environ, "LC_ALL": "C", "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0"}
    old_format = tmp_path / "ä.tar"
    with tarfile.open(old_format, "w", format=tarfile.GNU_FORMAT, encoding="utf-8") as archive:
        for name, data in files.items():
            add(archive, name, data)
    for root in (folder, old_format):
        command = [sys.executable, "-c", LOCALE_CHECK, str(root)]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
        assert done.stdout.strip() == r"('schw\xe4ne', 'two words')"
