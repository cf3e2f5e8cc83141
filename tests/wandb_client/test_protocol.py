from __future__ import annotations

from google.protobuf.descriptor import FieldDescriptor
from wandb.proto import wandb_internal_pb2

from ampcompare.wandb_client.protocol import SCHEMA

TYPES = {
    "string": FieldDescriptor.TYPE_STRING,
    "bytes": FieldDescriptor.TYPE_MESSAGE,  # left as it is on the wire
    "int32": FieldDescriptor.TYPE_INT32,
    "uint32": FieldDescriptor.TYPE_UINT32,
    "int64": FieldDescriptor.TYPE_INT64,
}


# Output, files, artifacts, alerts, telemetry, metric definitions, header, footer, requests; and what is on
# any record: number, control, uuid, info. A kind that is neither read nor here may be worth a reader.
IRRELEVANT = {4, 6, 8, 9, 10, 11, 12, 13, 20, 21, 22, 23, 24, 25, 27, 100} | {1, 16, 19, 200}


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
        assert field.number in read | IRRELEVANT, f"{field.name} ({field.number}) is new"
