"""Where the items of many history and summary records lie, found for all records at once.

W&B's client writes a history and two summary records for every logged row, each with an item for every
metric, in an order that changes from record to record. Decoding them one by one makes a Python object of
each key and each value; here NumPy walks through the wire bytes (protobuf's encoding, "Protocol Buffers:
Encoding") of thousands of records side by side: the first field of all, the second of all. Only the form that
the client writes is known here. A record of any other form, even one that means the same, is left to protobuf
(`Batch.plain`), so that what a record says is never a matter of how it was read.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ampcompare.wandb_client.protocol import ENVELOPE, IRRELEVANT

HISTORY, SUMMARY = 2, 3  # field numbers in Record, and kinds of records here
NOTHING, PLAIN = 0, -1
# What is read behind the last record (a varint, the characters of a number, the longest key) is still data.
PADDING = bytes(160)
FEW = 8  # records side by side for which NumPy's calls (1 us each) cost more than protobuf's objects
MOST_FIELDS = 16  # on a record: the client writes five
MOST_KEY_BYTES = 136  # with its tags; a longer key would cost memory for all
VARINT, LENGTH = 0, 2  # wire types
KEY, NESTED_KEY, HISTORY_STEP, VALUE = 0x0A, 0x12, 0x12, (0x82, 0x01)  # tags
ITEM = 0x0A
IS_NOTHING, IS_ENVELOPE = np.zeros(256, bool), np.zeros(256, bool)
IS_NOTHING[list(IRRELEVANT)] = IS_ENVELOPE[list(ENVELOPE)] = True
HASH_FACTOR = np.uint64(0x9E3779B97F4A7C15)  # 2^64 by the golden ratio (Knuth 1973, 6.4)
HASH_BITS = 16
# Masks that leave so many bytes of a little-endian word.
FIRST_BYTES = np.array([(1 << 8 * count) - 1 for count in range(9)], np.uint64)
Numbers = np.ndarray[Any, np.dtype[np.int64]]


@dataclass(frozen=True)
class Items:
    """The items of history and summary records, [n] in the order of the file.

    `record` is the number of an item's record in its batch; `path` of its key in `paths`, which holds the
    wire bytes of each key once: a message of its own, to be decoded by protobuf. Its value is the text
    `data[begin:end]` of its batch, of one byte or more.
    """

    record: Numbers
    path: Numbers
    begin: Numbers
    end: Numbers
    paths: list[bytes]

    def take(self, chosen: np.ndarray) -> Items:
        """Some of the items, by a mask or by number."""
        names = ("record", "path", "begin", "end")
        return replace(self, **{name: getattr(self, name)[chosen] for name in names})


class Batch:
    """Some records of a file. `kinds` has a kind for each; NOTHING holds nothing of a run's figures."""

    def __init__(self, payloads: Sequence[bytes]) -> None:
        self.payloads = payloads
        self.data = b"".join((*payloads, PADDING))
        self.bytes = np.frombuffer(self.data, np.uint8)
        sizes = np.fromiter(map(len, payloads), np.int64, len(payloads))
        self._ends = np.cumsum(sizes)
        self._begins = self._ends - sizes
        self.kinds = np.full(len(payloads), PLAIN)
        self._find_contents()
        self.items = self._find_items()

    def leave(self, records: np.ndarray) -> None:
        """Leave these records to protobuf after all."""
        self.kinds[records] = PLAIN
        self.items = self.items.take(self.kinds[self.items.record] != PLAIN)

    def plain(self) -> Numbers:
        """The numbers of the records that are for protobuf to decode."""
        return np.flatnonzero(self.kinds == PLAIN)

    def _find_contents(self) -> None:
        """Set the kind of each record, and where its content lies in `_begins` and `_ends`."""
        record = np.arange(len(self.payloads))
        at, limit = self._begins.copy(), self._ends.copy()
        kinds = np.full(len(record), PLAIN)  # of what is found so far
        for _ in range(MOST_FIELDS):
            tag, begin = self._varints(at)
            size, begin = self._varints(begin)  # or the value of a number, which is of no interest
            end = begin + np.where(tag & 7 == LENGTH, size, 0)
            number = np.minimum(tag >> 3, 255)
            good = (tag >= 8) & ((tag & 7 == LENGTH) | (tag & 7 == VARINT)) & (size >= 0) & (end <= limit)
            is_content = ~IS_ENVELOPE[number]
            good &= ~is_content | ((tag & 7 == LENGTH) & (kinds[record] == PLAIN))
            is_rows = (number == HISTORY) | (number == SUMMARY)
            good &= ~is_content | is_rows | IS_NOTHING[number]
            found = np.flatnonzero(good & is_content)
            kinds[record[found]] = np.where(is_rows, number, NOTHING)[found]
            self._begins[record[found]], self._ends[record[found]] = begin[found], end[found]
            done = good & (end == limit)
            self.kinds[record[done]] = kinds[record[done]]
            more = np.flatnonzero(good & ~done)
            if not len(more):
                return
            record, at, limit = record[more], end[more], limit[more]

    def _find_items(self) -> Items:
        record, begin, end = self._walk(np.flatnonzero(self.kinds > NOTHING))
        key_end, good = self._key_ends(begin, end)
        size, value = self._varints(key_end + 2)
        good &= (self.bytes[key_end] == VALUE[0]) & (self.bytes[key_end + 1] == VALUE[1])
        good &= (size > 0) & (value + size == end)
        if not good.all():
            self.kinds[record[~good]] = PLAIN
        kept = np.flatnonzero(self.kinds[record] != PLAIN)
        self._is_high = self.bytes > 127
        self._is_high[key_end[kept]] = False  # the tags of values, which are most of the bytes above 127
        path, paths = self._distinct(begin[kept], key_end[kept])
        return Items(record[kept], path, value[kept], end[kept], paths)

    def _walk(self, record: Numbers) -> tuple[Numbers, Numbers, Numbers]:
        """Record, begin and end of each item in these records; what holds anything else becomes PLAIN."""
        at, limit = self._begins[record], self._ends[record]
        # A history record without items is a row; what is left over below `FEW` is for protobuf.
        is_open = at < limit
        record, at, limit = record[is_open], at[is_open], limit[is_open]
        found = []
        while len(record) >= FEW:
            tag = self.bytes[at]
            size, begin = self._varints(at + 1)
            end = begin + size
            is_item = tag == ITEM
            good = is_item | ((tag == HISTORY_STEP) & (self.kinds[record] == HISTORY))
            good &= (size >= 0) & (end <= limit)
            self.kinds[record[~good]] = PLAIN
            taken = np.flatnonzero(good & is_item)
            found.append((record[taken], begin[taken], end[taken]))
            more = np.flatnonzero(good & (end < limit))
            record, at, limit = record[more], end[more], limit[more]
        self.kinds[record] = PLAIN
        empty = np.empty(0, np.int64)
        joined = [np.concatenate(parts) for parts in zip(*found, strict=True)] or [empty] * 3
        order = np.argsort(joined[1], kind="stable")
        return joined[0][order], joined[1][order], joined[2][order]

    def _key_ends(self, begin: Numbers, end: Numbers) -> tuple[Numbers, np.ndarray]:
        """Where the key of each item ends, and whether its parts are below 128 bytes, as is known here."""
        data = self.bytes
        tag, size = data[begin], data[begin + 1]
        good = ((tag == KEY) | (tag == NESTED_KEY)) & (size < 128)
        at = np.minimum(begin + 2 + size, end)
        while True:  # each round adds two bytes at least to a key, of which there are not many
            is_open = (at < end) & (at - begin <= MOST_KEY_BYTES)
            nested = np.flatnonzero(is_open & (data[at] == NESTED_KEY))
            if not len(nested):
                return at, good & is_open
            size = data[at[nested] + 1]
            good[nested] &= size < 128
            at[nested] = np.minimum(at[nested] + 2 + size, end[nested])

    def _varints(self, at: Numbers) -> tuple[Numbers, Numbers]:
        """Values of the varints at these places, -1 for one of more than four bytes, and where they end."""
        byte = self.bytes[at]
        value, end = (byte & 127).astype(np.int64), at + 1
        more = np.flatnonzero(byte > 127)
        for shift in (7, 14, 21):
            if not len(more):
                return value, end
            byte = self.bytes[end[more]]
            value[more] |= (byte & 127).astype(np.int64) << shift
            end[more] += 1
            more = more[byte > 127]
        value[more] = -1
        return value, end

    def _distinct(self, begin: Numbers, end: Numbers) -> tuple[Numbers, list[bytes]]:
        """For each slice of the data the number of its text, and these texts, each once.

        By a table of hashes, where each place has the last slice that fell there. Whoever differs from the
        slice in its place (compared in full, 8 bytes at a time) is looked up in a dictionary.
        """
        size = end - begin
        words = self._words(begin, size)
        total = size.astype(np.uint64)
        for word in words:
            total += word
        total ^= total >> np.uint64(32)
        place = (total * HASH_FACTOR >> np.uint64(64 - HASH_BITS)).astype(np.int64)
        table = np.empty(1 << HASH_BITS, np.int64)
        table[place] = np.arange(len(begin))
        like = table[place]
        same = size == size[like]
        for word in words:
            same &= word == word[like]
        first: dict[bytes, int] = {}
        for n in np.flatnonzero(~same).tolist():
            like[n] = first.setdefault(self.data[begin[n] : end[n]], n)
        is_first = np.zeros(len(begin), bool)
        is_first[like] = True
        chosen = np.flatnonzero(is_first)
        number = np.empty(len(begin), np.int64)
        number[chosen] = np.arange(len(chosen))
        return number[like], [self.data[begin[n] : end[n]] for n in chosen.tolist()]

    def _words(self, begin: Numbers, size: Numbers) -> list[np.ndarray]:
        """The slices as columns of 8 bytes, zero where a slice is over."""
        at_any = np.ndarray((len(self.data) - 7,), "<u8", self.data, strides=(1,))
        columns = []
        for offset in range(0, int(size.max(initial=0)), 8):
            left = np.clip(size - offset, 0, 8)
            columns.append(at_any[begin + offset] & FIRST_BYTES[left])
        return columns

    def not_ascii(self) -> Numbers:
        """The numbers of those items whose value holds anything but ASCII."""
        begin, end = self.items.begin, self.items.end
        if not len(begin):
            return np.empty(0, np.int64)
        high = np.flatnonzero(self._is_high)
        item = np.maximum(np.searchsorted(begin, high, side="right") - 1, 0)
        return np.unique(item[(high >= begin[item]) & (high < end[item])])

    def joined(self, items: Items) -> bytes:
        """The values of these items with a comma between them."""
        sizes = items.end - items.begin + 1
        ends = np.cumsum(sizes)
        places = np.repeat(items.begin - (ends - sizes), sizes)
        places += np.arange(len(places))
        text = self.bytes[places]
        text[ends - 1] = ord(",")
        return text[:-1].tobytes()
