"""What `sweep_soak.py` has run: writes a record as W&B's client does offline, row by row, and trains nothing.

Without wandb and without AMP Compare, as a start of either takes longer than all of this.
"""

import json
import os
import struct
import sys
import time
import zlib
from pathlib import Path

BLOCK, ROWS = 32_768, 10


def varint(number: int) -> bytes:
    """A number as protobuf has it."""
    out = bytearray()
    while number > 127:
        out.append(number & 127 | 128)
        number >>= 7
    return bytes([*out, number])


def part(field: int, content: bytes | str) -> bytes:
    """A field of a message: a text, or a message."""
    data = content.encode() if isinstance(content, str) else content
    return varint(field << 3 | 2) + varint(len(data)) + data


def items(values: dict[str, object]) -> bytes:
    """Pairs as configs and rows of the history have them."""
    return b"".join(part(1, part(1, key) + part(16, json.dumps(value))) for key, value in values.items())


class Record:
    """A `.wandb` file: each record is on the disk when `write` returns."""

    def __init__(self, file: Path) -> None:
        self._file = file.open("xb", buffering=0)
        self._file.write(struct.pack("<4sHB", b":W&B", 0xBEE1, 0))

    def write(self, payload: bytes) -> None:
        left = BLOCK - self._file.tell() % BLOCK
        if left < 7 + len(payload):
            self._file.write(bytes(left) if left < 7 else _chunk(bytes(left - 7)))
        self._file.write(_chunk(payload))


def _chunk(data: bytes) -> bytes:
    return struct.pack("<IHB", zlib.crc32(b"\1" + data), len(data), 1) + data


def main() -> None:
    given = dict(word.removeprefix("--").split("=", 1) for word in sys.argv[1:])
    run = os.environ["WANDB_RUN_ID"]
    folders = Path(os.environ["WANDB_DIR"]) / "wandb"
    attempt = len(list(folders.glob(f"*-{run}")))
    now = time.localtime(time.time() + attempt)  # each attempt in a folder of its own, in their order
    began = time.strftime("%Y%m%d_%H%M%S", now)
    folder = folders / f"offline-run-{began}-{run}"
    folder.mkdir()
    record = Record(folder / f"run-{run}.wandb")
    started = varint(1 << 3) + varint(int(time.time()))
    config = items({"x": int(given["x"])})
    about = part(1, run) + part(3, "soak") + part(4, config) + part(6, "soak") + part(17, started)
    record.write(part(17, about))
    for step in range(ROWS):
        time.sleep(float(given["seconds"]) / ROWS)
        record.write(part(2, items({"_step": step, "global_step": step, "loss": 1 / (1 + step)})))
    record.write(part(18, b""))  # exit code 0


if __name__ == "__main__":
    main()
