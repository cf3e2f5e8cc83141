"""Class folders on disk: what is read, in which order, and each thing that can be wrong."""

import io
import os
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from ampcompare.data.dataset import build_dataset
from ampcompare.errors import UserError


def load(root: Path):
    return build_dataset("image_folder", str(root))


def message_of(root: Path) -> str:
    with pytest.raises(UserError) as error:
        load(root)
    text = str(error.value)
    assert text.startswith("data.root=")
    assert "\n" not in text
    return text


def save(path: Path, image: Image.Image, **options) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    image.save(path, **options)


def test_classes_and_images_come_in_order_of_their_names(folder, files):
    dataset = load(folder)
    assert dataset.classes == ("schwäne", "two words")
    assert dataset.train.labels.tolist() == [0, 0, 0, 1, 1, 1]
    assert dataset.test.labels.tolist() == [0, 0, 1, 1]
    expected = [
        np.asarray(Image.open(io.BytesIO(data))) for name, data in files.items() if name.startswith("train")
    ]
    assert dataset.train.images.shape == (6, 3, 6, 5)
    np.testing.assert_array_equal(dataset.train.images.permute(0, 2, 3, 1).numpy(), np.stack(expected))


@pytest.mark.parametrize("mode", ["L", "1", "P", "RGBA", "LA", "CMYK"])
def test_every_kind_of_8_bit_image_becomes_rgb(folder, mode):
    image = Image.fromarray(np.arange(90, dtype=np.uint8).reshape(6, 5, 3)).convert(mode)
    save(folder / "train/schwäne/aaa.tif", image)
    first = load(folder).train.images[0].permute(1, 2, 0).numpy()
    np.testing.assert_array_equal(first, np.asarray(image.convert("RGB")))


def test_hidden_files_and_what_is_no_image_are_left_out(folder):
    for name in (".DS_Store", "train/._schwäne", "train/schwäne/._bild.png", ".git/config"):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_bytes(b"hidden")
    for name in ("readme.txt", "train/labels.csv", "test/schwäne/Thumbs.db"):
        (folder / name).write_bytes(b"no image")
    assert len(load(folder).train) == 6


@pytest.mark.parametrize("root", [None, ""])
def test_no_root_is_an_error(root):
    with pytest.raises(UserError, match=r"data\.root is not set"):
        build_dataset("image_folder", root)


@pytest.mark.parametrize("name", ["nowhere", "nul\0character", "~no-such-user-at-all/x"])
def test_missing_root_is_named(tmp_path, name):
    root = name if name.startswith("~") else str(tmp_path / name)
    with pytest.raises(UserError, match=r"^data\.root='.*(nowhere|nul|no-such-user).*'"):
        build_dataset("image_folder", root)


def test_root_without_splits_says_what_it_found(tmp_path):
    (tmp_path / "val").mkdir()
    assert "there is no folder 'train' in it (found: val): expected train/<class>/<image>" in message_of(
        tmp_path
    )


@pytest.mark.parametrize(("has", "lacks"), [("train", "test"), ("test", "train")])
def test_class_on_one_side_only_is_named(folder, png, has, lacks):
    extra = folder / has / "extra"
    extra.mkdir()
    (extra / "1.png").write_bytes(png())
    assert f"class folder 'extra' is in '{has}' but not in '{lacks}'" in message_of(folder)


@pytest.mark.parametrize("split", ["train", "test"])
def test_image_of_another_size_is_named(folder, png, split):
    (folder / split / "two words/odd.png").write_bytes(png(height=7, width=5))
    text = message_of(folder)
    assert f"image '{split}/two words/odd.png' is 5x7 pixels but the first one is 5x6" in text


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"not an image",
        b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 5 6\n",
        b"\x89PNG\r\n\x1a\n" + bytes(40),
    ],
)
def test_file_that_is_no_image_is_named(folder, content):
    (folder / "test/two words/broken.jpg").write_bytes(content)
    # An EPS file must not even be recognised: Pillow would start Ghostscript for it.
    assert "image 'test/two words/broken.jpg' does not decode (cannot identify image" in message_of(folder)


@pytest.mark.parametrize("mode", ["I;16", "I", "F"])
def test_deeper_than_8_bits_is_refused_instead_of_clipped(folder, mode):
    save(folder / "train/schwäne/deep.tif", Image.new(mode, (5, 6)))
    assert "image 'train/schwäne/deep.tif' has more than 8 bits a channel" in message_of(folder)


def test_decompression_bomb_is_refused_before_it_unfolds(folder):
    save(folder / "train/schwäne/bomb.png", Image.new("1", (20_000, 20_000)))
    text = message_of(folder)
    assert "image 'train/schwäne/bomb.png' does not decode" in text
    assert "decompression bomb" in text


def test_links_to_images_are_followed_and_broken_ones_named(folder, png, tmp_path):
    (tmp_path / "elsewhere.png").write_bytes(png(99))
    os.symlink(tmp_path / "elsewhere.png", folder / "train/schwäne/link.png")
    assert len(load(folder).train) == 7
    os.unlink(tmp_path / "elsewhere.png")
    text = message_of(folder)
    assert "No such file or directory" in text
    assert "link.png" in text


def test_a_pipe_in_place_of_an_image_does_not_hang(folder):
    os.mkfifo(folder / "train/schwäne/pipe.png")
    assert len(load(folder).train) == 6


def test_a_class_whose_name_is_not_utf8_is_one_line(folder, png):
    for split in (b"train", b"test"):
        made = os.path.join(os.fsencode(folder), split, b"\xff")
        os.mkdir(made)
        with open(os.path.join(made, b"1.png"), "wb") as file:
            file.write(png())
    assert "cannot be read" in message_of(folder)


def test_an_image_replaced_in_place_with_its_old_times_is_noticed(folder, png):
    path = folder / "train/schwäne/bild 0 ä.bmp"
    images = [Image.fromarray(np.full((6, 5, 3), value, np.uint8)) for value in (10, 200)]
    save(path, images[0])
    assert load(folder).train.images[0].float().mean() == 10
    before = path.stat()
    save(path, images[1])
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert path.stat().st_size == before.st_size
    assert load(folder).train.images[0].float().mean() == 200


def test_a_changed_folder_is_read_anew_and_a_copy_has_the_same_fingerprint(folder, png):
    first = load(folder)
    (folder / "train/schwäne/zzz.png").write_bytes(png(50))
    second = load(folder)
    assert len(second.train) == len(first.train) + 1
    assert second.fingerprint != first.fingerprint
    (folder / "train/schwäne/zzz.png").unlink()
    moved = folder.rename(folder.with_name("elsewhere"))
    third = load(moved)
    assert third.fingerprint == first.fingerprint
    assert torch.equal(third.train.images, first.train.images)
