"""The public surface, frozen: what users, records, scripts and other programs rely on.

Each test collects one surface from the running code and compares it with `golden/NAME.yaml`. A failure lists
what was added, removed and changed, and names a file that holds the whole surface as it is now. An intended
change is made in the golden file, line by line, together with a line in CHANGELOG.md. A moved checkpoint key
also raises the checkpoint format.

Golden files hold keys, names, defaults and hashes of fixed input. They hold nothing that differs between
machines or versions of the libraries.
"""

import inspect
import json
import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterable, Mapping
from importlib import import_module
from itertools import islice
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

import numpy as np
import pytest
import typer
import yaml
from rich.console import Console
from support import warm_python
from support.contract import Inline, check, environment_variables, imports_in, key_paths
from support.fakes import full, make, plan
from support.known_runs import BASE, FAST, SAME, runs
from support.publication_files import write_publication
from support.quick import QUICK, ROOT
from support.same_run import end_of, record_of
from support.wandb_files import write_runs

from ampcompare import analyse_runs, metrics, plugins
from ampcompare.analysis import gates
from ampcompare.analysis.bench_file import BenchArm, BenchControl, BenchFile, BenchStart
from ampcompare.bench import worker
from ampcompare.cli import app, main
from ampcompare.config.load import load_config
from ampcompare.config.schema import OPTIONS
from ampcompare.data.factory import Dataset, build_dataset
from ampcompare.data.seeding import derive_seed
from ampcompare.errors import EXIT_BAD_INPUT
from ampcompare.experiment import run
from ampcompare.report.exports import to_csv, to_json
from ampcompare.report.pipeline import EXIT_NOT_SHOWN
from ampcompare.runs import RunRecord
from ampcompare.runs import system_metrics as foreign_machine
from ampcompare.runtime.signals import EXIT_FAILED, EXIT_INTERRUPTED
from ampcompare.runtime.yaml_io import flatten
from ampcompare.sweeps.prepare import prepare_sweep
from ampcompare.sweeps.samplers import run_at
from ampcompare.sweeps.sweep import orders
from ampcompare.sweeps.sweep_file import sweep_of
from ampcompare.sweeps.sweep_identity import seed_of
from ampcompare.system import environment as machine
from ampcompare.training.checkpoint.store import FORMAT

GOLDEN = Path(__file__).parent / "golden"
SOURCE = ROOT / "src" / "ampcompare"
# Each step overflows on every machine, so that the keys of skipped steps are in the record, too.
OVERFLOWS = ("backend=native", "precision.init_scale=1e30")
# Whatever can come from outside, in one file.
OUTSIDE = """
import torch
from torch import nn

from ampcompare.precision.registry import BackendInfo
from ampcompare.precision.base import Precision


class Mine(Precision):
    metadata = BackendInfo("mine", "autocast in bf16", dtype="bfloat16")
    input_dtype = torch.bfloat16

    def forward_context(self):
        return torch.autocast(self.device.type, dtype=torch.bfloat16)


class Rows(torch.utils.data.Dataset):
    def __len__(self):
        return 16

    def __getitem__(self, i):
        return torch.arange(4.0) + i, torch.tensor([float(i)])


def rows(train):
    return Rows()


def network(width=2):
    return nn.Sequential(nn.Linear(4, width), nn.Linear(width, 1))


def loss(outputs, targets):
    return (outputs - targets).square().mean()


def error(outputs, targets):
    return (outputs - targets).abs()
"""
FIXED = """
import numpy as np


def images(train):
    count = 8 if train else 4
    pixels = np.arange(count * 192, dtype=np.int64).astype(np.uint8)
    return pixels.reshape(count, 3, 8, 8), np.arange(count) % 2


def table(train):
    count = 8 if train else 4
    return np.arange(count * 3, dtype=np.float32).reshape(count, 3), np.arange(count, dtype=np.float32)
"""
SWEEP = {
    "method": "random",
    "program": "run_experiment.py",
    "parameters": {
        "backend": {"values": ["none", "native"]},
        "optimizer.lr": {"distribution": "log_uniform_values", "min": 0.01, "max": 1.0},
        "batch_size": {"distribution": "q_uniform", "min": 32, "max": 256, "q": 32},
    },
}


def freezes(name: str, now: Any, folder: Path) -> None:
    check(GOLDEN / f"{name}.yaml", now, folder)


def train(folder: Path, *words: str) -> Path:
    done = run(load_config(None, [*QUICK, f"output_dir={folder}", *words]), Console(quiet=True), brief=True)
    assert done.exit_code == 0
    return folder


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> RunRecord:
    """Return the record of one small run under a backend that scales the loss."""
    return record_of(train(tmp_path_factory.mktemp("trained"), *OVERFLOWS, "epochs=1"))


def own(keys: Iterable[str]) -> list[str]:
    """Return the keys sorted, without W&B's own; the layer groups of a small network are numbers."""
    return sorted({re.sub(r"/\d+$", "/GROUP", key) for key in keys if not key.startswith("_")})


def kept(record: RunRecord) -> dict[str, list[str]]:
    """Return the keys of a record, whose environment has to be the same in config and summary."""
    config, summary = dict(record.config), dict(record.summary)
    environment = key_paths(config.pop("environment"))
    assert key_paths(summary.pop("environment")) == environment
    keys = {"config": own(key_paths(config)), "environment": environment}
    return keys | {"rows": own(record.logged), "summary": own(summary)}


def test_metric_keys(tmp_path: Path):
    def of(metric: Any) -> Inline:
        unit = {"unit": metric.unit} if metric.unit else {}
        better = {"better": metric.better} if metric.better else {}
        groups = {"also": "KEY/GROUP"} if metric.by_group else {}
        return Inline(unit | better | groups)

    every = metrics.METRICS.values()
    at_end = {m.key: of(m) for m in every if m.when == metrics.END}
    rows = {m.key: of(m) for m in every if m.when != metrics.END}
    inside = ("TASK", "PRECISION_DTYPE", "ARITHMETIC", "KEPT_FP32", "MODEL_PARAMETERS")
    names = {
        "keys of environment": [getattr(metrics, name) for name in inside],
        "words for arithmetic": [metrics.EMULATED, metrics.UNKNOWN],
        "what an evaluation logs": f"{metrics.EVAL_PREFIX}NAME",
        "best of the evaluations": metrics.make_best_key("eval/NAME"),
    }
    freezes("metrics", {"rows": rows, "summary alone": at_end, **names}, tmp_path)


RECORDED_LOOP = """
import sys
import torch
from support.recorded_loop import Loop
from ampcompare import Recorder
loop = Loop(torch.amp.GradScaler("cpu", init_scale=1e30), steps=4)
with Recorder(
    backend="native", seed=1, batch_size=8, every=2, warmup_steps=1, diagnostics=2, test_samples=8,
    output_dir=sys.argv[1], scaler=loop.scaler, optimizer=loop.optimizer, model=loop.model,
) as record:
    loop(record)
    record.evaluate(accuracy=0.5, loss=1.0)
"""


def test_record_keys(trained: RunRecord, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "outside.py").write_text(OUTSIDE)
    monkeypatch.chdir(tmp_path)
    outside = [f"{key}=./outside.py:{name}" for key, name in (("backend", "Mine"), ("model.name", "network"))]
    outside += ["data.source=./outside.py:rows", "task.loss=./outside.py:loss", "data.workers=0"]
    outside += ["task.metrics=[./outside.py:error]", "precision.keep_fp32=[1]", "model.kwargs.width=3"]
    limits = ["data.train_limit=null", "data.test_limit=null", "epochs=1"]
    from_outside = kept(record_of(train(tmp_path / "outside", *outside, *limits)))

    monkeypatch.setenv("WANDB_MODE", "offline")
    # In a process of its own, of which it is the first record.
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "tests")}
    subprocess.run(
        [warm_python.python(), "-c", RECORDED_LOOP, tmp_path / "loop"], check=True, env=environment
    )
    ours = kept(trained)
    added = {k: [key for key in from_outside[k] if key not in ours[k]] for k in ("config", "environment")}
    recorded = kept(record_of(tmp_path / "loop"))
    freezes("records", {"run": ours, "run with plug-ins, also": added, "Recorder": recorded}, tmp_path)


def test_options(tmp_path: Path):
    plain = load_config()
    bounds = {"low": "minimum", "high": "maximum", "above": "above", "below": "below", "pattern": "pattern"}

    def of(spec: Any) -> Inline:
        kind = f"list of {spec.item.__name__}" if spec.type is list else spec.type.__name__
        said: dict[str, Any] = {"default": plain.value(spec.key), "type": kind}
        said |= {"null": True} if spec.optional else {}
        said |= {"choices": [*spec.choices]} if spec.choices else {}
        said |= {
            name: value for name, field in bounds.items() if (value := getattr(spec, field)) not in (None, "")
        }
        said |= {"plug-ins": True} if spec.plugin else {}
        return Inline(said | {"role": spec.role.name.lower()})

    reference, default = (dict(flatten(load_config(name).to_dict())) for name in ("reference", None))
    differing = {key: value for key, value in reference.items() if value != default.get(key)}
    options = {key: of(spec) for key, spec in OPTIONS.items()}
    freezes("options", {"options": options, "configs/reference.yaml differs in": differing}, tmp_path)


def all_paths(contents: Iterable[Any]) -> list[str]:
    """Return the paths of all leaves. A key that is null in one content and a tree in another is no leaf."""
    paths = sorted({path for content in contents for path in key_paths(content)})
    return [p for p in paths if not any(other.startswith((f"{p}.", f"{p}[")) for other in paths)]


def folded(tree: Any, estimate: set[str]) -> Any:
    """Return the tree with ESTIMATE in place of the keys of an estimate, of which a comparison has dozens."""
    if isinstance(tree, Mapping):
        found = {key: folded(value, estimate) for key, value in tree.items()}
        if estimate <= found.keys():
            return {key: value for key, value in found.items() if key not in estimate} | {"ESTIMATE": None}
        return found
    return [folded(item, estimate) for item in tree] if isinstance(tree, list) else tree


def test_keys_of_a_report(tmp_path: Path):
    training = worker.build([*QUICK[:4], "batch_size=8", "device=cpu"])
    start = BenchStart(
        images_per_second=[40.0], step_ms=[25.0], baseline_images_per_second=[40.0], peak_mib=1.0
    )
    backend = {"backend": "none"}
    about = {"label": "none", "options": backend | dict(training.settings), "requested": backend}
    base = BenchArm.from_starts([start], 0.99, **about)
    control = BenchControl.from_starts([start], 0.99, **about)
    file = {"baseline": "none", "level": 0.99, "machine": "", "device": "Test Device 9000"}
    file |= {
        "fingerprint": {**training.fingerprint, "package_version": ""},
        "control": control,
        "arms": [base],
    }
    benched = BenchFile(**file).model_dump()
    ends = {"options": backend, "low": 1.0, "high": 1.0, "rounds": 24}
    read = benched | {"control": benched["control"] | ends, "arms": [benched["arms"][0] | ends]}
    del read["fingerprint"]  # these runs are of another network, which a benchmark with a fingerprint refuses
    (tmp_path / "bench.json").write_text(json.dumps(read))

    names, seeds = ("none", "native"), (1, 2, 3)
    plan = {"margin": 0.5, "target": 0.3, "looks": [3, 5], "max_seeds": 5, "control": "bookends"}
    records = [make(b, s, edit=full) for b in (*names, "apex_o1") for s in seeds]
    planned = [make(b, s, config={"plan": plan}) for b in names for s in seeds]
    bookends = runs("none", SAME, arms=("first", "first", "last", "last", "last"))
    controlled = [*runs("none", BASE), *runs("native", SAME, FAST, failed=(4,)), *bookends]
    foreign = [make(b, s) for b in names for s in seeds]
    for record in foreign:
        record.logged["samples_per_sec"] = record.logged.pop(metrics.THROUGHPUT)
    required = ["native: speedup >= 1.5, failures <= 0"]
    analyses = [
        analyse_runs(records, reproduce=write_publication(tmp_path), require=required, target=0.93),
        analyse_runs(records, bench=str(tmp_path / "bench.json")),
        analyse_runs(planned),
        analyse_runs(controlled, target=0.93),
        analyse_runs(foreign, throughput="samples_per_sec:per_second"),
    ]
    contents = [json.loads(to_json(one)) for one in analyses]
    contents[0]["published"]["setting"] = "by OPTION"
    estimate = contents[0]["groups"][0]["figures"]["quality"]
    headers = {to_csv(one).partition("\n")[0] for one in analyses}
    assert len(headers) == 1
    surface = {
        "comparison.json": all_paths(folded(content, {*estimate}) for content in contents),
        "ESTIMATE": all_paths([estimate]),
        "comparison.csv": headers.pop().split(","),
        "bench --json": key_paths(benched),
    }
    freezes("report_files", surface, tmp_path)


def test_keys_of_why(tmp_path: Path):
    tiny = ["model.name=tiny", "data.source=synthetic", "data.train_limit=16", "data.test_limit=16"]
    tiny += ["batch_size=8", "device=cpu", "backend=native_bf16"]
    options = {"explain": ["--seconds", "0.1"], "diff": [], "guard": ["--steps", "2", "--margin", "1000"]}
    surface = {}
    for command, words in options.items():
        file = tmp_path / f"{command}.json"
        with pytest.raises(SystemExit) as end:
            main(["why", command, *tiny, *words, "--json", str(file)])
        assert end.value.code == 0
        content = json.loads(file.read_text())
        for side in content.get("backends", ()):
            side["activations"], side["ms"]["kinds"] = "by MODULE", "by KIND"
        surface[f"why {command} --json"] = all_paths([content])
    file = tmp_path / "accuracy.json"
    with pytest.raises(SystemExit) as end:
        main(["why", "diff", *tiny, "backend=none,bf16", "--json", str(file)])
    assert end.value.code == 0
    surface["why diff KEY=A,B --json"] = all_paths([json.loads(file.read_text())])
    freezes("why_files", surface, tmp_path)


def test_require_grammar(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    golden = yaml.safe_load((GOLDEN / "require.yaml").read_text())
    accepted = {
        text: [[gate.label, gate.kind, gate.bound] for gate in gates.parse_gates([text])]
        for text in golden["accepted"]
    }
    write_runs(tmp_path, [plan("none"), plan("native")])
    refused = {}
    for text in golden["refused"]:
        with pytest.raises(SystemExit) as end:
            main(["report", str(tmp_path), "--out", str(tmp_path / "report"), "--require", text])
        (line,) = capsys.readouterr().err.splitlines()
        assert "--require" in line
        refused[text] = f"exit code {end.value.code}"
    freezes("require", {"terms": [*gates.GATE_KINDS], "accepted": accepted, "refused": refused}, tmp_path)


BACKENDS = ("none", "native", "apex_o1", "apex_o2", "bf16_sr")
OF_BACKEND = ("model", "optimizer", "precision")


def test_checkpoint_keys(tmp_path: Path):
    words = ("wandb.mode=disabled", "epochs=1", "data.train_limit=16", "optimizer.momentum=0.9")
    saved, files = {}, set()
    for backend in BACKENDS:
        folder = train(tmp_path / backend, *words, f"backend={backend}")
        saved[backend] = end_of(folder)
        files |= {file.name for file in (folder / "checkpoints").glob("*/*")} - {"lock"}
    content = json.loads(next((tmp_path / "none" / "checkpoints").glob("*/run.json")).read_text())

    def of_all(state: dict[str, Any]) -> set[str]:
        theirs = ("scheduler", "random", "config")  # PyTorch's and NumPy's own; records.yaml has the config
        return set(key_paths({k: v for k, v in state.items() if k not in OF_BACKEND + theirs}))

    def of_backend(state: dict[str, Any]) -> dict[str, list[str]]:
        groups = {**state["optimizer"], "param_groups": "of PyTorch"}
        found = {"model": state["model"], "optimizer": groups, "precision": state["precision"]}
        return {name: key_paths(part) for name, part in found.items()}

    shared = set.intersection(*map(of_all, saved.values()))
    surface = {
        "format": FORMAT,
        "files": sorted(files),
        "run.json": sorted(content),
        "parts": sorted(saved["none"]),
        "under every backend": sorted(shared),
        "random of a process": sorted(saved["none"]["random"][0]),
    }
    for backend, state in saved.items():
        assert state.keys() == saved["none"].keys()
        more = sorted(of_all(state) - shared)
        parts = of_backend(state)
        if backend == "none":
            surface |= {"model": parts["model"], "optimizer": parts["optimizer"]}
        differing = {name: part for name, part in parts.items() if surface.get(name) != part}
        surface[f"backend={backend}"] = differing | ({"also": more} if more else {})
    surface["identity of a run in run.json"] = dict(sorted(content["identity"].items()))
    freezes("checkpoints", surface, tmp_path)


def test_hashes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "fixed.py").write_text(FIXED)
    monkeypatch.chdir(tmp_path)
    images = np.arange(4 * 3 * 8 * 8).astype(np.uint8).reshape(4, 3, 8, 8)
    pair = images, np.array([0, 1, 0, 1])
    data = {
        "Dataset.of_images": Dataset.from_images(pair, pair, ("a", "b")),
        "synthetic": build_dataset("synthetic", train_limit=32, test_limit=16),
        "images of a function": build_dataset("./fixed.py:images"),
        "tensors of a function": build_dataset("./fixed.py:table"),
    }
    (tmp_path / "run_experiment.py").write_text("# ampcompare.entrypoint\n")
    sweep = sweep_of(Path("mine.yaml"), SWEEP)
    began = dict(prepare_sweep(sweep, ["epochs=2"]).definition)
    seed = seed_of(sweep, began)

    def rounded(tree: dict[str, Any]) -> Inline:  # another machine's logarithm may differ in the last digit
        return Inline({k: float(f"{v:.9g}") if isinstance(v, float) else v for k, v in flatten(tree)})

    surface = {
        "salt of names of machines": repr(machine.SALT),
        "host example-host": machine.hash_name("example-host"),
        "host example-host, of another program's W&B run": foreign_machine.hash_name("example-host"),
        "code of a plug-in": plugins.load(plugins.MODELS, "./fixed.py:table").source,
        "data": {
            name: Inline(data=one.fingerprint, test_set=one.test.fingerprint(one.classes))
            for name, one in data.items()
        },
        "seed of sample 17 in epoch 4, seed 223": derive_seed(223, 4, 17),
        "definition of a sweep": began,
        "seed of a random search": seed,
        "runs of a random search": [rounded(run_at(sweep, seed, None, n).parameters) for n in range(4)],
        "order of 4 values in 3 blocks": [str([*order]) for order in islice(orders("mine", 4), 3)],
    }
    freezes("hashes", surface, tmp_path)


def parameters(function: Any) -> Inline:
    """Return the names of parameters with their defaults, where these are plain values."""
    given = inspect.signature(function).parameters.values()

    def default(one: inspect.Parameter) -> Any:
        if one.kind in (one.VAR_KEYWORD, one.VAR_POSITIONAL):
            return "any"
        if one.default is one.empty:
            return "required"
        if isinstance(one.default, tuple):
            return [*one.default]
        return one.default if isinstance(one.default, str | int | float | None) else "optional"

    return Inline({one.name: default(one) for one in given if one.name != "self"})


def public(cls: type) -> list[str]:
    """Return the names of attributes and fields that do not begin with an underscore."""
    fields = getattr(cls, "__dataclass_fields__", {})
    return sorted(name for name in {*dir(cls), *fields} if not name.startswith("_"))


# These import other people's libraries, which takes seconds: they have a slow test of their own.
CALLBACKS = [f"ampcompare.recorder.{name}:RecorderCallback" for name in ("lightning", "transformers")]


def test_public_imports(tmp_path: Path):
    golden = yaml.safe_load((GOLDEN / "imports.yaml").read_text())
    pages = [ROOT / "README.md", *(ROOT / "docs").glob("*.md"), *(ROOT / "docs" / "examples").glob("*.py")]
    documented = {name for page in pages for name in imports_in(page.read_text(encoding="utf-8"))}
    names = sorted(documented | {*golden["names"]})
    unknown = [name for name in names if name not in CALLBACKS and not can_import(name)]
    assert not unknown, f"cannot be imported: {unknown}"
    functions = {name: parameters(resolve_name(name)) for name in golden["parameters"]}
    classes = {name: public(resolve_name(name)) for name in golden["attributes"]}
    freezes("imports", {"names": names, "parameters": functions, "attributes": classes}, tmp_path)


def can_import(name: str) -> bool:
    """Return whether `from MODULE import NAME` works."""
    module, _, attribute = name.partition(":")
    try:
        return hasattr(import_module(module), attribute) or bool(import_module(f"{module}.{attribute}"))
    except ImportError:
        return False


def test_programs_and_environment(tmp_path: Path):
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    surface = {
        "console scripts": project["scripts"],
        "extras": sorted(project["optional-dependencies"]),
        "environment variables": environment_variables(SOURCE.rglob("*.py")),
        "exit codes": {
            "a run failed": EXIT_FAILED,
            "bad input": EXIT_BAD_INPUT,
            "not shown": EXIT_NOT_SHOWN,
            "interrupted": int(EXIT_INTERRUPTED),
        },
        "programs": {
            " ".join(words): subprocess.run(
                [sys.executable, *words], cwd=ROOT, capture_output=True, check=False
            ).returncode
            for words in (
                ("-m", "ampcompare", "--version"),
                ("-m", "ampcompare.cli", "--version"),
                ("run_experiment.py", "--help"),
            )
        },
    }
    freezes("programs", surface, tmp_path)


def test_options_of_the_command_line(tmp_path: Path):
    def of(parameter: Any) -> tuple[str, Inline]:
        default = parameter.default
        is_argument = parameter.param_type_name == "argument"
        said: dict[str, Any] = {"argument": parameter.metavar} if is_argument else {}
        said |= {"default": None if callable(default) else default}
        limits = parameter if hasattr(parameter, "min") else parameter.type  # by version of Typer
        said |= {k: v for k in ("min", "max") if isinstance(v := getattr(limits, k, None), int | float)}
        said |= {"required": True} if parameter.required else {}
        said |= {"flag": True} if getattr(parameter, "is_flag", False) else {}
        said |= {"many": True} if parameter.multiple or parameter.nargs == -1 else {}
        return " ".join([*parameter.opts, *parameter.secondary_opts]), Inline(said)

    def commands(command: Any, name: str) -> dict[str, Any]:
        found = {name: dict(of(p) for p in command.params)}
        for inner, one in getattr(command, "commands", {}).items():
            found |= commands(one, f"{name} {inner}")
        return found

    freezes("command_line", commands(typer.main.get_command(app), "ampcompare"), tmp_path)
