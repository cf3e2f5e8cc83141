"""What W&B's client saw of the machine: from a run's file, and from the server."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path

from support.log_writer import frame
from support.wandb_server import Server, Sweep
from support.wandb_server.clients import asking
from wandb.proto.wandb_internal_pb2 import Record

from ampcompare.records import RunRecord, load_runs

PROCESS, GPU = "gpu.process.{}.memoryAllocatedBytes", "gpu.{}.memoryAllocatedBytes"
EVENTS = [
    {"_timestamp": 5.0, "system.gpu.0.memoryAllocatedBytes": 2**31, "system.cpu": 3.0},
    {"_timestamp": 20.0, "system.gpu.0.memoryAllocatedBytes": 2**30},
]
NAME = "NVIDIA A100"
METADATA = {"gpu": NAME, "gpu_nvidia": [{"name": NAME, "uuid": "GPU-1"}], "host": "box", "os": "Linux"}


def read(folder: Path, gpus: int, samples: Sequence[dict[str, float]] = ()) -> RunRecord:
    """The run of a file with samples of a machine that has so many GPUs."""
    file = folder / f"run-{gpus}.wandb"
    begin, machine = Record(), Record()
    begin.run.run_id = "a"
    environment = machine.environment
    environment.host, environment.gpu_type, environment.cuda_version = "box", NAME, "13.0"
    for number in range(gpus):
        environment.gpu_nvidia.add(name=NAME, uuid=f"GPU-{number}")
    stats = [Record() for _ in samples]
    for record, sample in zip(stats, samples, strict=True):
        for key, value in sample.items():
            record.stats.item.add(key=key, value_json=json.dumps(value))
    file.write_bytes(frame([record.SerializeToString() for record in (begin, machine, *stats)]))
    (run,) = load_runs([file])
    return run


def test_the_peak_of_each_kind_of_memory_is_that_of_a_sample_over_all_gpus(tmp_path: Path):
    one = {PROCESS.format(0): 3 * 2**20, GPU.format(0): 9 * 2**20}
    two = {PROCESS.format(1): 2**20, "cpu": 3.0}
    run = read(tmp_path, 2, [one | two, {"cpu": 1.0}, {PROCESS.format(0): math.nan}, two])
    assert run.machine.peaks == {"process": 4, "gpus": 9}
    assert run.problems == []


def test_the_machine_is_known_by_hashes_and_one_gpu_of_several_is_not_told(tmp_path: Path):
    one, two = (read(tmp_path, gpus).machine.facts for gpus in (1, 2))
    assert (one["device_name"], one["device_type"], one["cuda"]) == (NAME, "cuda", "13.0")
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
    assert (machine.facts["device_name"], machine.facts["platform"]) == (NAME, "Linux")
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
