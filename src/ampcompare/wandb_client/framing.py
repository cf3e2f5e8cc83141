"""The framing of a `.wandb` file: LevelDB log blocks, their checksums, and what to do where they are broken.

A file is a 7-byte header (`:W&B`, the number 0xBEE1, version 0) and blocks of 32 KiB counted from the start
of the file. A block holds chunks: crc32 of type and data, length, type, data. A record is one full chunk, or
a first, middle ones and a last, across blocks. The layout is LevelDB's (doc/log_format.md) except for the
header and for the checksum, which is plain crc32 (zlib's), neither Castagnoli's nor masked; seen on files of
wandb 0.31.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator
from itertools import chain
from typing import Protocol

BLOCK_BYTES = 32_768
FILE_HEADER = struct.pack("<4sHB", b":W&B", 0xBEE1, 0)
CHUNK_HEADER = struct.Struct("<IHB")
FULL, FIRST, MIDDLE, LAST = 1, 2, 3, 4
MAX_SENTENCES = 5


class NotWandbFile(Exception):
    """The file neither begins like a `.wandb` file nor holds one valid chunk in its first block."""


class Readable(Protocol):
    """What is needed of a file."""

    def read(self, size: int, /) -> bytes:
        """The next bytes, so many at most; none at its end."""


class LogReader:
    """Iterates over the payloads of one open `.wandb` file, a block in memory at a time.

    A broken chunk costs the rest of its block, because its length cannot be trusted either (LevelDB's own
    rule, and that of `wandb leet inspect`). What was passed over is told by `problems()` once the iteration
    is over. A file that ends inside a record is read up to its last whole record. `start` is where the file
    stands: the beginning of a block.

    Raises NotWandbFile on the first payload, OSError where the file cannot be read.
    """

    def __init__(self, file: Readable, start: int = 0) -> None:
        self._file, self._start = file, start
        self._damages: list[str] = []
        self._damage_count = self._lost_bytes = self._tail_bytes = 0
        self.size = start

    def problems(self) -> list[str]:
        """What was wrong with the file, one sentence each."""
        said = list(self._damages)
        if self._damage_count > len(said):
            said.append(f"{self._damage_count - len(said)} more damaged places.")
        if self._lost_bytes:
            said.append(f"{self._lost_bytes:,} bytes in all were skipped as damaged.")
        if self._tail_bytes:
            unused = f"last {self._tail_bytes:,} bytes unused"
            why = "normal while a run writes or after it was killed"
            said.append(f"The file ends inside a record ({unused}): {why}.")
        if self.size == 0:
            said.append("The file is empty: the run had written nothing yet.")
        return said

    def __iter__(self) -> Iterator[bytes]:
        return chain.from_iterable(self.blocks())

    def blocks(self) -> Iterator[list[bytes]]:
        """The payloads of the records that end in each block."""
        pending: list[bytes] | None = None  # the chunks so far of a record that spans blocks
        pending_at = 0
        after_gap = self._start > 0  # as it were: the record there may have begun before
        for base, block in self._blocks():
            view = memoryview(block)
            position = len(FILE_HEADER) if base == 0 else 0
            if base == 0:
                self._check_file_header(block)
            payloads: list[bytes] = []
            while position < len(block):
                if pending is None:
                    before, position = position, _take_full(block, view, position, payloads)
                    after_gap = after_gap and position == before
                kind, end = self._next_chunk(view, base, position)
                if kind is None:  # nothing more in this block
                    if end:  # damaged: what was being put together is lost with it
                        pending, after_gap = None, True
                    break
                data = view[position + CHUNK_HEADER.size : end]
                if kind in (FULL, FIRST) and pending is not None:
                    self._damage(f"The record at byte {pending_at:,} has no end; it was skipped.")
                    pending = None
                if kind == FULL:
                    payloads.append(bytes(data))
                elif kind == FIRST:
                    pending, pending_at = [bytes(data)], base + position
                elif pending is not None:
                    pending.append(bytes(data))
                    if kind == LAST:
                        payloads.append(b"".join(pending))
                        pending = None
                elif not after_gap:
                    place = f"byte {base + position:,}"
                    self._damage(f"The record before {place} has no beginning; it was skipped.")
                after_gap = after_gap and kind == MIDDLE
                position = end
            yield payloads
        if pending is not None:
            self._tail_bytes = self.size - pending_at
        elif self.size < len(FILE_HEADER):
            self._tail_bytes = self.size

    def _blocks(self) -> Iterator[tuple[int, bytes]]:
        while block := self._read_block():
            base, self.size = self.size, self.size + len(block)
            yield base, block

    def _read_block(self) -> bytes:
        parts = self._file.read(BLOCK_BYTES)
        # A short read in the middle of a file (some network file systems) must not look like its end.
        while 0 < len(parts) < BLOCK_BYTES and (more := self._file.read(BLOCK_BYTES - len(parts))):
            parts += more
        return parts

    def _check_file_header(self, block: bytes) -> None:
        header = block[: len(FILE_HEADER)]
        if FILE_HEADER.startswith(header):  # whole, or cut short
            return
        kind, _ = self._next_chunk(memoryview(block), 0, len(FILE_HEADER), quiet=True)
        if kind is None:
            raise NotWandbFile
        if header[:6] == FILE_HEADER[:6]:
            self._damage(f"Format version {header[6]} is unknown; it was read as version {FILE_HEADER[6]}.")
        else:
            self._damage("The file header is damaged.")

    def _next_chunk(
        self, view: memoryview, base: int, position: int, *, quiet: bool = False
    ) -> tuple[int | None, int]:
        """Type and end of the chunk at `position`; (None, 0) at the block's end, (None, 1) if broken."""
        is_whole = len(view) == BLOCK_BYTES
        rest = len(view) - position
        if rest < CHUNK_HEADER.size:
            if not is_whole and not quiet:
                self._tail_bytes = rest
            return None, 0
        checksum, length, kind = CHUNK_HEADER.unpack_from(view, position)
        end = position + CHUNK_HEADER.size + length
        if end > len(view) and not is_whole:
            if not quiet:
                self._tail_bytes = rest
            return None, 0
        # The type byte lies right before the data, so that one call covers both.
        if end <= len(view) and zlib.crc32(view[position + 6 : end]) == checksum and FULL <= kind <= LAST:
            return kind, end
        if not quiet:
            what = "zero bytes" if not any(view[position:]) else "a bad checksum"
            if what != "zero bytes" and end <= len(view) and not FULL <= kind <= LAST:
                what = f"an unknown chunk type {kind}"
            self._lost_bytes += rest
            place, end = base + position, base + len(view)
            self._damage(f"Damaged at byte {place:,} ({what}): skipped to byte {end:,}.")
        return None, 1

    def _damage(self, sentence: str) -> None:
        self._damage_count += 1
        if len(self._damages) < MAX_SENTENCES:
            self._damages.append(sentence)


def _take_full(block: bytes, view: memoryview, position: int, payloads: list[bytes]) -> int:
    """Append the payloads of the whole records from `position` on; returns where something else begins.

    Nearly all that there is: the few steps that these need, and no others, for each.
    """
    last = len(block) - CHUNK_HEADER.size
    unpack, crc32 = CHUNK_HEADER.unpack_from, zlib.crc32
    while position <= last:
        checksum, length, kind = unpack(block, position)
        begin = position + 7
        end = begin + length
        if kind != FULL or end > len(block) or crc32(view[begin - 1 : end]) != checksum:
            break
        payloads.append(block[begin:end])
        position = end
    return position
