"""The part of W&B's record protocol that is needed to read a run, without importing wandb.

`import wandb` takes 0.4 s and 60 MB; protobuf with these few messages 0.03 s and 15 MB, and decodes with the
same C code. Names and field numbers are those of `wandb/proto/wandb_internal.proto`; a test compares them
with the installed wandb. Fields that are not listed here are skipped by protobuf.
"""

from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

PACKAGE = "ampcompare.wandb_log"

ITEM = {"key": (1, "string"), "nested_key": (2, "string[]"), "value_json": (16, "string")}
# message -> field -> (number, type); "[]" marks a repeated field, a capital a message. The items of rows and
# of the summary, of which there are thousands, are bytes: `runs/wandb_file.py` takes them apart.
SCHEMA: dict[str, dict[str, tuple[int, str]]] = {
    "Record": {
        "history": (2, "HistoryRecord"),
        "summary": (3, "SummaryRecord"),
        "config": (5, "ConfigRecord"),
        "stats": (7, "StatsRecord"),
        "metric": (12, "MetricRecord"),
        "run": (17, "RunRecord"),
        "exit": (18, "RunExitRecord"),
        "preempting": (23, "RunPreemptingRecord"),
        "environment": (26, "EnvironmentRecord"),
    },
    "RunRecord": {
        "run_id": (1, "string"),
        "entity": (2, "string"),
        "project": (3, "string"),
        "config": (4, "ConfigRecord"),
        "summary": (5, "SummaryRecord"),
        "run_group": (6, "string"),
        "job_type": (7, "string"),
        "display_name": (8, "string"),
        "notes": (9, "string"),
        "tags": (10, "string[]"),
        "sweep_id": (12, "string"),
        "start_time": (17, "Timestamp"),
    },
    "ConfigRecord": {"update": (1, "ConfigItem[]"), "remove": (2, "ConfigItem[]")},
    "ConfigItem": ITEM,
    "SummaryRecord": {"update": (1, "bytes[]"), "remove": (2, "SummaryItem[]")},
    "SummaryItem": ITEM,
    "HistoryRecord": {"item": (1, "bytes[]"), "step": (2, "HistoryStep")},
    "HistoryStep": {"num": (1, "int64")},
    "HistoryItem": ITEM,
    "MetricRecord": {
        "name": (1, "string"),
        "glob_name": (2, "string"),
        "step_metric": (4, "string"),
        "summary": (7, "MetricSummary"),
        "goal": (8, "int32"),  # an enum: 1 minimize, 2 maximize
    },
    "MetricSummary": {"min": (1, "bool"), "max": (2, "bool"), "best": (4, "bool")},
    "StatsRecord": {"timestamp": (2, "Timestamp")},
    "EnvironmentRecord": {
        "os": (1, "string"),
        "python": (2, "string"),
        "host": (12, "string"),
        "cpu_count": (16, "uint32"),
        "gpu_type": (18, "string"),
        "gpu_count": (19, "uint32"),
        "apple": (23, "AppleInfo"),
        "gpu_nvidia": (24, "GpuNvidiaInfo[]"),
        "cuda_version": (25, "string"),
        "gpu_amd": (26, "GpuAmdInfo[]"),
        "trainium": (28, "TrainiumInfo"),
        "tpu": (29, "TPUInfo"),
    },
    "AppleInfo": {"name": (1, "string")},
    "GpuAmdInfo": {"unique_id": (2, "string"), "series": (8, "string"), "model": (9, "string")},
    "TrainiumInfo": {"name": (1, "string")},
    "TPUInfo": {"name": (1, "string")},
    "GpuNvidiaInfo": {"name": (1, "string"), "uuid": (5, "string")},
    "RunExitRecord": {"exit_code": (1, "int32")},
    "RunPreemptingRecord": {},
    "Timestamp": {"seconds": (1, "int64"), "nanos": (2, "int32")},
}

_FIELD = descriptor_pb2.FieldDescriptorProto
_SCALARS = {
    "string": _FIELD.TYPE_STRING,
    "bool": _FIELD.TYPE_BOOL,
    "bytes": _FIELD.TYPE_BYTES,
    "int32": _FIELD.TYPE_INT32,
    "uint32": _FIELD.TYPE_UINT32,
    "int64": _FIELD.TYPE_INT64,
}


def _build() -> tuple[Any, Any]:
    name = "ampcompare/wandb_log.proto"
    file = descriptor_pb2.FileDescriptorProto(name=name, package=PACKAGE, syntax="proto3")
    for name, fields in SCHEMA.items():
        message = file.message_type.add(name=name)
        for field_name, (number, spelled) in fields.items():
            kind = spelled.removesuffix("[]")
            field = message.field.add(name=field_name, number=number)
            field.label = field.LABEL_REPEATED if spelled.endswith("[]") else field.LABEL_OPTIONAL
            if kind in _SCALARS:
                field.type = _SCALARS[kind]
            else:
                field.type = field.TYPE_MESSAGE
                field.type_name = f".{PACKAGE}.{kind}"
    pool = descriptor_pool.DescriptorPool()
    pool.AddSerializedFile(file.SerializeToString())
    classes = (pool.FindMessageTypeByName(f"{PACKAGE}.{name}") for name in ("Record", "HistoryItem"))
    record, item = map(message_factory.GetMessageClass, classes)
    return record, item


Record, Item = _build()
