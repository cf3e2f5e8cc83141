"""Synthetic images that a small network learns in seconds, for demos and tests, never for a claim.

Ten classes are ten colours, alternately with stripes along rows and along columns. Crops and flips change
neither. Every image also has a weaker pattern of another class, a random phase and width of its stripes, a
random brightness, and noise. So accuracy rises over hundreds of steps instead of being perfect at once.

Measured test accuracy (without momentum): a 3-layer CNN with batch 32 and lr 0.1 has 86% after 20 steps and
91% after 300. The network `tiny` as in configs/demo.yaml has 91.5% to 94% after 256 steps, depending on the
seed.

The images are made with integer arithmetic from PCG64's raw stream, so they are the same on every machine and
NumPy version.
"""

import numpy as np

from ampcompare.data.dataset import Dataset
from ampcompare.errors import UserError

TRAIN_COUNT = 50_000
TEST_COUNT = 10_000
SIZE = 32
ALLOWED_SIZES = range(8, 1025)
SEED = 10

COLOURS = {
    "red": (70, -50, -50),
    "orange": (70, 10, -60),
    "yellow": (60, 60, -60),
    "green": (-50, 65, -50),
    "cyan": (-60, 60, 60),
    "blue": (-50, -40, 75),
    "violet": (20, -60, 70),
    "pink": (70, 0, 40),
    "white": (60, 60, 60),
    "black": (-60, -60, -60),
}
CLASSES = tuple(f"{colour} {('rows', 'columns')[i % 2]}" for i, colour in enumerate(COLOURS))
STRIPE_AMPLITUDE = 40
WAVES = (3, 4)  # periods across an image
PHASES = 16
# The weight of the other pattern is uniform in 0..MAX_OTHER_WEIGHT, in 256ths: always below one half.
MAX_OTHER_WEIGHT = 104
NOISE = 48  # uniform in -NOISE..NOISE
BLOCK = 1000  # images made at a time; another value would change the images
CHOICE_BYTES = 8  # random bytes of an image besides its noise


def load(
    root: str | None = None, train_limit: int | None = None, test_limit: int | None = None, size: int = SIZE
) -> Dataset:
    """Make the first images of both splits.

    Images are not cached, since making them is about as fast as reading them.

    Args:
        root: Ignored.
        train_limit: The number of training images, None for all.
        test_limit: The number of test images, None for all.
        size: Width and height. Other sizes than SIZE repeat each image side by side and crop it.

    Raises:
        UserError: The size is not allowed.
    """
    if type(size) is not int or size not in ALLOWED_SIZES:
        raise UserError(
            f"data.kwargs.size={size!r}: "
            f"expected a whole number, {ALLOWED_SIZES.start} to {ALLOWED_SIZES.stop - 1}"
        )
    times = -(-size // SIZE)
    pairs = []
    for split, limit, count in (("train", train_limit, TRAIN_COUNT), ("test", test_limit, TEST_COUNT)):
        images, labels = make_images(split, min(limit or count, count))
        larger = np.tile(images, (1, 1, times, times)) if times > 1 else images
        pairs.append((np.ascontiguousarray(larger[:, :, :size, :size]), labels))
    return Dataset.from_images(pairs[0], pairs[1], CLASSES)


def make_images(split: str, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Make the first `count` images of an endless split; the seed of a run has no influence.

    Returns:
        Images, uint8 [N, 3, 32, 32], and labels, int64 [N], in which the classes take turns.
    """
    images = np.empty((count, 3, SIZE, SIZE), np.uint8)
    labels = np.arange(count, dtype=np.int64) % len(CLASSES)
    stripes = _make_stripe_table()
    for first in range(0, count, BLOCK):
        rng = np.random.PCG64([SEED, ("train", "test").index(split), first // BLOCK])
        images[first : first + BLOCK] = _make_block(rng, labels[first : first + BLOCK], stripes)
    return images, labels


def _make_block(rng: np.random.PCG64, labels: np.ndarray, stripes: np.ndarray) -> np.ndarray:
    # Draw random numbers for a whole block, so that a shorter block is the beginning of a longer one.
    per_image = CHOICE_BYTES + 3 * SIZE * SIZE
    words = rng.random_raw(BLOCK * per_image // 8).astype("<u8")
    random = words.view(np.uint8).reshape(BLOCK, per_image)[: len(labels)]
    choice = random[:, :CHOICE_BYTES].astype(np.int16)
    other = (labels + 1 + choice[:, 0] % (len(CLASSES) - 1)) % len(CLASSES)
    other_weight = (choice[:, 1] * (MAX_OTHER_WEIGHT + 1) >> 8).reshape(-1, 1, 1, 1)
    own = _make_patterns(labels, choice[:, 2], choice[:, 3], stripes)
    disturbing = _make_patterns(other, choice[:, 4], choice[:, 5], stripes)
    # With weights of 7 bits, products fit into 16 bits.
    weight = other_weight >> 1
    image = (own * (128 - weight) + disturbing * weight) >> 7
    image += (choice[:, 6] % 33 - 16).reshape(-1, 1, 1, 1)
    image += (random[:, CHOICE_BYTES:].astype(np.int16) * (2 * NOISE + 1) >> 8).reshape(image.shape) - NOISE
    return np.clip(image + 128, 0, 255).astype(np.uint8)


def _make_patterns(
    labels: np.ndarray, wave: np.ndarray, phase: np.ndarray, stripes: np.ndarray
) -> np.ndarray:
    """Return the colour plus stripes of each image's class, int16 [B, 3, 32, 32] in -127..127."""
    colours = np.array(list(COLOURS.values()), np.int16)[labels]
    texture = stripes[labels % 2, wave % len(WAVES), phase % PHASES]
    return colours[:, :, None, None] + texture[:, None]


def _make_stripe_table() -> np.ndarray:
    """Return all stripe images, int16 [direction, wave, phase, 32, 32]."""
    position = np.arange(SIZE) / SIZE
    wave = np.array(WAVES)[:, None, None]
    phase = (np.arange(PHASES) / PHASES)[:, None]
    line = np.rint(STRIPE_AMPLITUDE * np.cos(2 * np.pi * (wave * position + phase))).astype(np.int16)
    rows = np.broadcast_to(line[..., :, None], (*line.shape, SIZE))
    columns = np.broadcast_to(line[..., None, :], (*line.shape, SIZE))
    return np.stack([rows, columns])
