"""Class folders on disk and in archives: what is read, in which order, kept once decoded, or refused."""

import os
import shutil
import tarfile
import tempfile
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from support.outside import Outside
from support.refusals import line_of

from ampcompare.data.factory import build_dataset

NO_IMAGE = "cannot be decoded (cannot identify image"


def load_folder(root: Path):
    """Load a folder or archive."""
    return build_dataset("image_folder", str(root))


def get_error_message(root: Path) -> str:
    """Return the line of the error that a load raises."""
    text = line_of(load_folder, root)
    assert text.startswith(f"data.root={str(root)!r}: ")
    return text


def are_equal(one, other) -> bool:
    """Return whether two data sets are equal."""
    pairs = ((getattr(one, split), getattr(other, split)) for split in ("train", "test"))
    alike = all(torch.equal(a.images, b.images) and torch.equal(a.labels, b.labels) for a, b in pairs)
    return alike and (one.classes, one.fingerprint) == (other.classes, other.fingerprint)


@pytest.fixture
def decoded(outside: Outside) -> list[object]:
    """Return the images that Pillow has opened; the list grows."""
    images: list[object] = []
    outside.call_before(Image, "open", lambda image, *_, **__: images.append(image))
    return images


def test_classes_and_images_are_sorted_by_name_without_hidden_files(folder, files):
    for name in (".DS_Store", "train/._schwäne", "train/schwäne/._bild.png", "test/schwäne/Thumbs.db"):
        (folder / name).write_bytes(b"no image")
    os.mkfifo(folder / "train/schwäne/pipe.png")
    grey = folder / "train/two words/grey.jpg"
    Image.open(folder / "train/two words/bild 0 ä.png").convert("L").save(grey)
    dataset = load_folder(folder)
    assert dataset.classes == ("schwäne", "two words")
    assert dataset.train.labels.tolist() == [0, 0, 0, 1, 1, 1, 1]
    assert dataset.test.labels.tolist() == [0, 0, 1, 1]
    paths = [*(folder / name for name in files if name.startswith("train")), grey]
    expected = [np.asarray(Image.open(path).convert("RGB")) for path in paths]
    np.testing.assert_array_equal(dataset.train.images.permute(0, 2, 3, 1).numpy(), np.stack(expected))


def test_an_invalid_folder_is_refused_in_one_line(tmp_path, folder, png, subtests: pytest.Subtests):
    assert "data.root is not set" in line_of(build_dataset, "image_folder", "")
    (tmp_path / "val").mkdir()
    (folder / "test/extra").mkdir()
    (folder / "test/extra/1.png").write_bytes(png())
    for root, said in [
        (tmp_path / "nowhere", "cannot be read (No such file or directory"),
        (tmp_path / "nul\0character", "cannot be read ("),
        (tmp_path, "cannot be read (No such file or directory"),
        (folder, "class folder 'extra' is in only one of train and test"),
    ]:
        with subtests.test(said=said):
            assert said in get_error_message(root)


def test_an_unusable_image_is_named(folder, png):
    path = folder / "test/two words/odd.tif"
    for save, said in [
        (lambda: Image.new("I;16", (5, 6)).save(path), "has more than 8 bits per channel"),
        (lambda: Image.new("I", (5, 6)).save(path), "has more than 8 bits per channel"),
        (lambda: path.write_bytes(b""), NO_IMAGE),
        # An EPS file must not even be recognised: Pillow would start Ghostscript for it.
        (lambda: path.write_bytes(b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 5 6\n"), NO_IMAGE),
        (lambda: path.write_bytes(png(height=7, width=5)), "is 5x7 pixels but the first one is 5x6"),
    ]:
        save()
        assert f"image 'test/two words/odd.tif' {said}" in get_error_message(folder)


def make_archive(folder: Path, kind: str) -> Path:
    """Pack a folder into an archive."""
    return Path(shutil.make_archive(str(folder.with_name("Päckchen 1")), kind, folder))


@pytest.mark.parametrize(("kind", "leads"), [("tar", False), ("xztar", True), ("zip", True)])
def test_archives_give_the_same_data_as_their_folder(folder, tmp_path, kind, leads):
    expected = load_folder(folder)
    for name in ("__MACOSX/train/schwäne/._bild.png", ".hidden/train/a/b.png") if leads else ():
        (folder.parent / name).parent.mkdir(parents=True)
        (folder.parent / name).write_bytes(b"x")
    path = make_archive(tmp_path if leads else folder, kind)
    assert are_equal(load_folder(path.rename(tmp_path / "told by its content.bin")), expected)


@pytest.mark.parametrize("kind", ["tar", "zip"])
def test_no_archive_member_is_written_outside_the_temporary_folder(folder, tmp_path, outside: Outside, kind):
    (tmp_path / "temporary").mkdir()
    outside.replace(tempfile, "tempdir", str(tmp_path / "temporary"))
    path = make_archive(folder, kind)
    if kind == "tar":
        with tarfile.open(path, "a") as archive:
            archive.addfile(tarfile.TarInfo("../outside.png"))
        assert "outside the destination" in get_error_message(path)
    else:
        with zipfile.ZipFile(path, "a") as archive:
            archive.writestr("../outside.png", b"x")
        load_folder(path)
    assert not list(tmp_path.rglob("outside.png"))


def test_a_second_load_uses_the_cache_under_any_limit(folder, decoded, caplog):
    first = load_folder(folder)
    images = len(decoded)
    assert images >= len(first.train) + len(first.test)
    assert are_equal(first, load_folder(folder))
    part = build_dataset("image_folder", str(folder), train_limit=2)
    assert (len(part.train), len(decoded)) == (2, images)
    assert part.fingerprint != first.fingerprint == build_dataset("image_folder", str(folder), 6).fingerprint
    assert not caplog.messages


def test_a_changed_folder_or_archive_is_decoded_again_and_a_moved_one_is_not(folder, png):
    first = load_folder(folder)
    (folder / "train/schwäne/zzz.png").write_bytes(png(50))
    second = load_folder(folder)
    assert len(second.train) == len(first.train) + 1
    (folder / "train/schwäne/zzz.png").unlink()
    moved = folder.rename(folder.with_name("elsewhere"))
    assert are_equal(load_folder(moved), first)
    assert are_equal(load_folder(make_archive(moved, "tar")), first)
    (moved / "train/schwäne/bild 0 ä.png").write_bytes(png(77))
    assert load_folder(make_archive(moved, "tar")).fingerprint != first.fingerprint


def test_an_image_replaced_with_its_old_mtime_is_noticed(folder):
    path = folder / "train/schwäne/bild 0 ä.bmp"
    for value in (10, 200):
        before = path.stat() if path.exists() else None
        Image.fromarray(np.full((6, 5, 3), value, np.uint8)).save(path)
        if before:
            os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
        assert load_folder(folder).train.images[0].float().mean() == value


@pytest.mark.parametrize(
    "damage", [lambda c: b"", lambda c: c[: len(c) // 2], lambda c: c[:400] + b"?" + c[401:]]
)
def test_a_damaged_cache_is_reported_in_one_line_and_rebuilt(folder, cache_folder, decoded, caplog, damage):
    expected = load_folder(folder)
    images = len(decoded)
    (path,) = cache_folder.iterdir()
    path.write_bytes(damage(path.read_bytes()))
    assert are_equal(load_folder(folder), expected)
    (message,) = caplog.messages
    assert "the data cache cannot be used (" in message
    load_folder(folder)
    assert len(decoded) == 2 * images


def test_an_unusable_cache_folder_is_reported_once_and_the_data_loaded(folder, tmp_path, monkeypatch, caplog):
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("AMPCOMPARE_CACHE", str(tmp_path / "file" / "cache"))
    assert len(load_folder(folder).train) == 6
    (message,) = caplog.messages
    assert "the decoded data cannot be cached (" in message
    assert "unless AMPCOMPARE_CACHE names" in message
