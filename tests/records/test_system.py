"""What W&B's client saw of the machine: from a run's file, and from the server."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from support.log_writer import frame
from support.wandb_server import Server, Sweep
from support.wandb_server.clients import asking
from wandb.proto.wandb_internal_pb2 import Record

from ampcompare.records import load_runs

PROCESS, GPU = "gpu.process.{}.memoryAllocatedBytes", "gpu.{}.memoryAllocatedBytes"
EVENTS = [
    {"_timestamp": 5.0, "system.gpu.0.memoryAllocatedBytes": 2**31, "system.cpu": 3.0},
    {"_timestamp": 20.0, "system.gpu.0.memoryAllocatedBytes": 2**30},
]
METADATA = {
    "gpu": "NVIDIA A100",
    "gpu_nvidia": [{"name": "NVIDIA A100", "uuid": "GPU-1"}],
    "host": "box",
    "os": "Linux",
}


def write(folder: Path, *records: Any) -> None:
    file = folder / "offline-run-20260101_000000-a" / "run-a.wandb"
    file.parent.mkdir(parents=True)
    begin = Record()
    begin.run.run_id = "a"
    file.write_bytes(frame([r.SerializeToString() for r in (begin, *records)]))


def stats(**items: float) -> Any:
    record = Record()
    for key, value in items.items():
        record.stats.item.add(key=key, value_json=json.dumps(value))
    return record


def machine_of(gpus: int) -> Any:
    record = Record()
    environment = record.environment
    environment.host, environment.gpu_type, environment.cuda_version = "box", "NVIDIA A100", "13.0"
    for number in range(gpus):
        environment.gpu_nvidia.add(name="NVIDIA A100", uuid=f"GPU-{number}")
    return record


def test_the_peak_of_each_kind_of_memory_is_that_of_a_sample_over_all_gpus(tmp_path: Path):
    one, two = (
        {PROCESS.format(0): 3 * 2**20, GPU.format(0): 9 * 2**20},
        {PROCESS.format(1): 2**20, "cpu": 3.0},
    )
    write(
        tmp_path,
        stats(**one, **two),
        stats(cpu=1.0),
        stats(**{PROCESS.format(0): float("nan")}),
        stats(**two),
    )
    (run,) = load_runs([tmp_path])
    assert run.machine.peaks == {"process": 4, "gpus": 9}
    assert run.problems == []


def test_the_machine_is_known_by_hashes_and_one_gpu_of_several_is_not_told(tmp_path: Path):
    for gpus in (1, 2):
        write(tmp_path / str(gpus), machine_of(gpus))
    one, two = (load_runs([tmp_path / str(gpus)])[0].machine.facts for gpus in (1, 2))
    assert (one["device_name"], one["device_type"], one["cuda"]) == ("NVIDIA A100", "cuda", "13.0")
    assert set(one["machine"]) == {"host", "gpu_uuid"}
    assert set(two["machine"]) == {"host"}
    assert "box" not in json.dumps(one)


def test_the_server_is_asked_for_the_machine_of_other_programs_runs(wandb_server: Server, tmp_path: Path):
    project = wandb_server.project("tester", "p")
    for name, config in (("theirs", {}), ("ours", {"environment": {"device_name": "CPU"}})):
        run = project.run(name)
        run.rows, run.state, run.config = {0: {"_step": 0, "loss": 1.0}}, "finished", config
        run.events = [json.dumps(event) for event in EVENTS]
        run.files["wandb-metadata.json"] = json.dumps(METADATA).encode()
    with asking(wandb_server, tmp_path / "client"):
        found = {run.id: run for run in load_runs("wandb:tester/p")}
    machine = found["theirs"].machine
    assert machine.peaks == {"gpus": 2048}
    assert (machine.facts["device_name"], machine.facts["platform"]) == ("NVIDIA A100", "Linux")
    assert found["ours"].machine.facts == {}
    assert found["theirs"].problems == []


def test_a_sweep_on_the_server_tells_its_metric(wandb_server: Server, tmp_path: Path):
    project = wandb_server.project("tester", "p")
    text = "method: random\nmetric: {name: val_acc, goal: maximize}\nparameters: {lr: {value: 1}}\n"
    project.sweeps["s1"] = Sweep("s1", project, text)
    run = project.run("one")
    run.rows, run.state, run.sweep = {0: {"_step": 0, "val_acc": 1.0}}, "finished", project.sweeps["s1"]
    with asking(wandb_server, tmp_path / "client"):
        assert load_runs("wandb:tester/p/s1")[0].objective == ("val_acc", "maximize")
        assert load_runs("wandb:tester/p")[0].objective is None
