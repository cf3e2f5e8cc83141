"""The framing of a `.wandb` file: LevelDB log blocks, their checksums, and broken chunks.

A file is a 7-byte header (`:W&B`, the number 0xBEE1, version 0) and blocks of 32 KiB counted from the start
of the file. A block holds chunks: crc32 of type and data, length, type, data. A record is one full chunk, or
a first, middle ones and a last one, across blocks. The layout is LevelDB's (doc/log_format.md) except for the
header and the checksum, which is plain crc32 (zlib's), neither Castagnoli's nor masked; seen on files of
wandb 0.31.
"""

import struct
import zlib
from collections.abc import Iterator
from typing import BinaryIO

BLOCK_BYTES = 32_768
FILE_HEADER = struct.pack("<4sHB", b":W&B", 0xBEE1, 0)
CHUNK_HEADER = struct.Struct("<IHB")
FULL, FIRST, MIDDLE, LAST = 1, 2, 3, 4


class NotWandbFile(Exception):
    """The file has neither the header of a `.wandb` file nor a valid chunk in its first block."""


class LogReader:
    """Iterates over the payloads of an open `.wandb` file, with one block in memory at a time.

    After a broken chunk the rest of its block is skipped, because its length cannot be trusted either
    (LevelDB's rule, and that of `wandb leet inspect`). After the iteration `problems()` reports what was
    skipped. A file that ends inside a record is read up to its last complete record. The first payload raises
    NotWandbFile for another kind of file, and OSError for a file that cannot be read.

    Args:
        file: A file opened for reading in binary mode, at `start`.
        start: The start of a block, in bytes. 0: the file's header comes first.
    """

    def __init__(self, file: BinaryIO, start: int = 0) -> None:
        self._file = file
        self._damaged = self._lost_bytes = self._tail_bytes = 0
        self._parts: list[bytes] = []  # the chunks so far of a record that spans blocks,
        self._begun = 0  # and where it begins
        self._after_gap = start > 0  # the record there may have begun before
        self.size = start

    def problems(self) -> list[str]:
        """Return what was wrong with the file, one sentence each."""
        sentences = []
        if self._damaged:
            places = "1 place" if self._damaged == 1 else f"{self._damaged:,} places"
            sentences.append(f"The file is damaged at {places}: {self._lost_bytes:,} bytes were skipped.")
        if self._tail_bytes:
            sentences.append(
                f"The file ends inside a record (last {self._tail_bytes:,} bytes unused): "
                "normal while a run writes or after it was killed."
            )
        if self.size == 0:
            sentences.append("The file is empty: the run had written nothing yet.")
        return sentences

    def __iter__(self) -> Iterator[bytes]:
        while block := self._read_block():
            block_start = self.size  # in the file
            size = len(block)
            is_last_block = size < BLOCK_BYTES
            self.size += size
            position = self._after_file_header(block) if block_start == 0 else 0
            while position + CHUNK_HEADER.size <= size:
                checksum, length, kind = CHUNK_HEADER.unpack_from(block, position)
                begin = position + CHUNK_HEADER.size
                end = begin + length
                if end > size and is_last_block:
                    break  # the client has not written the rest yet
                # The type byte lies right before the data, so that one call covers both.
                if end > size or zlib.crc32(block[begin - 1 : end]) != checksum or not FULL <= kind <= LAST:
                    self._lose_rest_of_block(block_start + position)
                    position = size
                    break
                record = self._add_chunk(kind, block[begin:end], block_start + position)
                if record is not None:
                    yield record
                position = end
            if self._parts:
                self._tail_bytes = self.size - self._begun
            else:
                self._tail_bytes = size - position if is_last_block else 0

    def _add_chunk(self, kind: int, data: bytes, position: int) -> bytes | None:
        """Add a chunk to the record under way, and return the record if the chunk completes it.

        Args:
            kind: FULL, FIRST, MIDDLE or LAST.
            position: Where the chunk begins in the file.
        """
        if kind in (FULL, FIRST):
            if self._parts:  # the record before has no end
                self._lose(position - self._begun)
            self._parts = []
            self._after_gap = False
            if kind == FULL:
                return data
            self._parts.append(data)
            self._begun = position
            return None
        if not self._parts:  # the record has no beginning
            if not self._after_gap:
                self._lose(CHUNK_HEADER.size + len(data))
            self._after_gap = kind == MIDDLE
            return None
        self._parts.append(data)
        if kind == MIDDLE:
            return None
        record = b"".join(self._parts)
        self._parts = []
        return record

    def _lose_rest_of_block(self, position: int) -> None:
        """Skip the rest of the block from a broken chunk on, and the record that the chunk belongs to."""
        self._lose(self.size - (self._begun if self._parts else position))
        self._parts = []
        self._after_gap = True

    def _lose(self, count: int) -> None:
        self._damaged += 1
        self._lost_bytes += count

    def _read_block(self) -> bytes:
        block = b""
        # A short read in the middle of a file (some network file systems) must not look like its end.
        while len(block) < BLOCK_BYTES:
            more = self._file.read(BLOCK_BYTES - len(block))
            if not more:
                break
            block += more
        return block

    def _after_file_header(self, block: bytes) -> int:
        """Return where the chunks begin.

        Raises:
            NotWandbFile: The file is of another kind.
        """
        begin = len(FILE_HEADER)
        if len(block) < begin and FILE_HEADER.startswith(block):
            return 0
        if not block.startswith(FILE_HEADER):
            try:
                checksum, length, _ = CHUNK_HEADER.unpack_from(block, begin)
            except struct.error:
                raise NotWandbFile from None
            data = block[begin + CHUNK_HEADER.size - 1 :][: length + 1]
            if len(data) <= length or zlib.crc32(data) != checksum:
                raise NotWandbFile
            self._lose(begin)
        return begin
