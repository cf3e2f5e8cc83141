from __future__ import annotations

from google.protobuf.descriptor import FieldDescriptor
from wandb.proto import wandb_internal_pb2

from ampcompare.wandb_client.protocol import ENVELOPE, IRRELEVANT, SCHEMA, Record, unknown_kinds

TYPES = {
    "string": FieldDescriptor.TYPE_STRING,
    "bytes": FieldDescriptor.TYPE_MESSAGE,  # left as it is on the wire
    "int32": FieldDescriptor.TYPE_INT32,
    "uint32": FieldDescriptor.TYPE_UINT32,
    "int64": FieldDescriptor.TYPE_INT64,
}


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
            assert theirs[field].type == TYPES.get(kind, FieldDescriptor.TYPE_MESSAGE), (name, field)


def test_every_kind_of_record_of_the_installed_wandb_is_read_or_known_to_be_irrelevant():
    read = {number for number, _ in SCHEMA["Record"].values()}
    for field in wandb_internal_pb2.Record.DESCRIPTOR.fields:
        assert field.number in read | IRRELEVANT | ENVELOPE, f"{field.name} ({field.number}) is new"


def test_unknown_kind_is_told_from_an_irrelevant_one():
    telemetry = wandb_internal_pb2.Record()
    telemetry.telemetry.python_version = "3.11"
    assert unknown_kinds(Record.FromString(telemetry.SerializeToString())) == []
    unheard_of = bytes([0xFA, 0x3E, 0x00])  # field 1007, empty
    assert unknown_kinds(Record.FromString(unheard_of)) == [1007]
