"""Writes the framing of a `.wandb` file, so that tests can break it on purpose."""

from __future__ import annotations

import struct
import zlib

HEADER = b":W&B\xe1\xbe\x00"
BLOCK = 32_768


def chunk(kind: int, data: bytes) -> bytes:
    return struct.pack("<IHB", zlib.crc32(bytes([kind]) + data), len(data), kind) + data


def frame(payloads: list[bytes]) -> bytes:
    """The bytes of a file with these records."""
    file = bytearray(HEADER)
    for payload in payloads:
        rest, is_first = payload, True
        while True:
            left = BLOCK - len(file) % BLOCK
            if left < 7:
                file += bytes(left)
                left = BLOCK
            part, rest = rest[: left - 7], rest[left - 7 :]
            kind = (1 if is_first else 4) if not rest else (2 if is_first else 3)
            file += chunk(kind, part)
            is_first = False
            if not rest:
                break
    return bytes(file)
