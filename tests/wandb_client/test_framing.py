"""The form of a `.wandb` file: its frames, whole and damaged, and the fields of its records."""

import io
import random

import pytest
from google.protobuf.descriptor import FieldDescriptor
from hypothesis import given, settings
from hypothesis import strategies as st
from support.wandb_files import HEADER, chunk, frame
from wandb.proto import wandb_internal_pb2

from ampcompare.wandb_client.framing import BLOCK_BYTES, LogReader, NotWandbFile
from ampcompare.wandb_client.protocol import SCHEMA

SIZES = random.Random(0)
PAYLOADS = [SIZES.randbytes(SIZES.choice((0, 1, 50, 300, 7000, 40_000))) for _ in range(40)]
FILE = frame(PAYLOADS)
SPANNING = frame([bytes(80_000), b"end"])  # a record over three blocks, and another


def read(data: bytes) -> tuple[list[bytes], list[str]]:
    reader = LogReader(io.BytesIO(data))
    return list(reader), reader.problems()


def is_subsequence(part: list[bytes], whole: list[bytes]) -> bool:
    rest = iter(whole)
    return all(any(item == other for other in rest) for item in part)


@pytest.mark.parametrize("size", [0, 1, *range(BLOCK_BYTES - 30, BLOCK_BYTES + 30, 3)])
def test_every_record_of_a_whole_file_comes_back_in_order(size: int):
    payloads = [bytes(size), *PAYLOADS]  # the first ends near a border of blocks
    assert read(frame(payloads)) == (payloads, [])
    assert read(b"") == ([], ["The file is empty: the run had written nothing yet."])


def test_file_cut_at_any_byte_gives_the_records_before_the_cut():
    small = frame([bytes([i]) * (i * 11 % 90) for i in range(30)])
    whole = read(small)[0]
    for cut in range(len(small)):
        records, problems = read(small[:cut])
        assert records == whole[: len(records)], cut
        ends_inside = frame(records) != small[:cut]
        assert bool(problems) == ends_inside, (cut, problems)


@settings(max_examples=150)
@given(place=st.integers(len(HEADER), len(FILE) - 1), noise=st.binary(min_size=1, max_size=200))
def test_damage_costs_no_record_outside_its_block_and_invents_none(place, noise):
    damaged = FILE[:place] + noise + FILE[place + len(noise) :]
    damaged = damaged[: len(FILE)]
    records, problems = read(damaged)
    assert is_subsequence(records, PAYLOADS)
    if damaged != FILE:
        assert problems
        assert len(records) < len(PAYLOADS)
    # Whatever lies two blocks further on is untouched.
    later = frame([*PAYLOADS, *[bytes(7000)] * 12, b"end"])
    records, _ = read(later[:place] + noise + later[place + len(noise) :])
    assert records[-1] == b"end"


@settings(max_examples=100)
@given(noise=st.binary(max_size=5000))
def test_noise_raises_nothing_but_not_wandb_file(noise):
    for data in (noise, HEADER + noise):
        try:
            read(data)
        except NotWandbFile:
            assert data is noise


@pytest.mark.parametrize(
    ("data", "whole", "places", "count"),
    [
        (HEADER + chunk(1, b"first")[:-1] + b"x" + chunk(1, b"second"), [], "1 place", 25),
        (HEADER + chunk(1, b"a") + chunk(9, b"b"), [b"a"], "1 place", 8),
        (HEADER + chunk(1, b"a") + bytes(40_000), [b"a"], "2 places", 40_000),
        (HEADER + chunk(2, b"no end") + chunk(1, b"next"), [b"next"], "1 place", 13),
        (HEADER + chunk(4, b"no beginning") + chunk(1, b"next"), [b"next"], "1 place", 19),
        (SPANNING[:99] + b"x" + SPANNING[100:], [b"end"], "1 place", BLOCK_BYTES - len(HEADER)),
        (b"XXXX" + FILE[4:], PAYLOADS, "1 place", 7),
        (FILE[:6] + b"\x07" + FILE[7:], PAYLOADS, "1 place", 7),  # another version
    ],
)
def test_damage_is_one_sentence_with_places_and_bytes(data, whole, places, count):
    records, problems = read(data)
    assert records == whole
    assert problems == [f"The file is damaged at {places}: {count:,} bytes were skipped."]


def test_a_file_of_something_else_is_refused():
    with pytest.raises(NotWandbFile):
        read(b"PNG" + bytes(range(256)) * 10)


def test_reads_in_blocks_however_short_the_reads_are():
    class Slow(io.BytesIO):
        def read(self, size: int = -1) -> bytes:
            return super().read(min(size, 1000))

    assert list(LogReader(Slow(FILE))) == PAYLOADS


TYPES = {
    "string": FieldDescriptor.TYPE_STRING,
    "bytes": FieldDescriptor.TYPE_MESSAGE,  # left as it is on the wire
    "bool": FieldDescriptor.TYPE_BOOL,
    "int32": FieldDescriptor.TYPE_INT32,
    "uint32": FieldDescriptor.TYPE_UINT32,
    "int64": FieldDescriptor.TYPE_INT64,
}


# Output, files, artifacts, alerts, telemetry, metric definitions, header, footer, requests; and what is on
# any record: number, control, uuid, info. A kind that is neither read nor here may be worth a reader.
IRRELEVANT = {4, 6, 8, 9, 10, 11, 13, 20, 21, 22, 23, 24, 25, 27, 100} | {1, 16, 19, 200}


def message(name: str):
    if name == "Timestamp":
        return wandb_internal_pb2.RunRecord.DESCRIPTOR.fields_by_name["start_time"].message_type
    return getattr(wandb_internal_pb2, name).DESCRIPTOR


def test_field_numbers_and_types_are_those_of_the_installed_wandb():
    for name, fields in SCHEMA.items():
        theirs = message(name).fields_by_name
        for field, (number, spelled) in fields.items():
            kind = spelled.removesuffix("[]")
            assert theirs[field].number == number, (name, field)
            assert theirs[field].is_repeated == spelled.endswith("[]"), (name, field)
            types = {TYPES.get(kind, FieldDescriptor.TYPE_MESSAGE)}
            if kind == "int32":  # an enum is written in the same way
                types.add(FieldDescriptor.TYPE_ENUM)
            assert theirs[field].type in types, (name, field)


def test_every_kind_of_record_of_the_installed_wandb_is_read_or_known_to_be_irrelevant():
    read = {number for number, _ in SCHEMA["Record"].values()}
    for field in wandb_internal_pb2.Record.DESCRIPTOR.fields:
        assert field.number in read | IRRELEVANT, f"{field.name} ({field.number}) is new"
