"""What the pages and the docstrings show to others is so, and runs as it stands."""

import doctest
import importlib
import io
import json
import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest
from support import warm_python
from support.documents import read_blocks, run_commands
from support.outside import Outside
from support.quick import QUICK, ROOT
from support.training import play

from ampcompare import analyse_runs, load_runs, metrics
from ampcompare.precision import build_precision
from ampcompare.precision.apex import amp
from ampcompare.runs import RunRecord

DOCS = ROOT / "docs"


def test_the_table_of_metrics_has_every_one_with_its_unit_and_time():
    told = {}
    for line in (DOCS / "metrics.md").read_text().splitlines():
        if line.startswith("| `"):
            keys, _, unit, when = (cell.strip() for cell in line.strip("|").split("|"))
            told |= dict.fromkeys(re.findall(r"`([^`]+)`", keys), (unit, when))
    assert told == {m.key: (m.unit, m.when) for m in metrics.METRICS.values()}


def test_submitit_and_ray_have_the_options_that_the_pages_name():
    import ray
    from submitit.slurm.slurm import SlurmExecutor

    text = "\n".join(page.read_text() for page in (ROOT / "README.md", *DOCS.glob("*.md")))
    named = {*re.findall(r"(?<![\w./-])(slurm|ray)\.([a-z]\w*)", text)}
    parameters = {name for cluster, name in named if cluster == "slurm"}
    assert {"time", "partition", "mem"} <= parameters <= SlurmExecutor._valid_parameters()
    options = {name for cluster, name in named if cluster == "ray"}
    assert "num_gpus" in options
    ray.remote(lambda: None).options(**dict.fromkeys(options))  # raises ValueError for an unknown one


# docs/extending.md, and the examples of public functions.

EXTENDING = dict(re.findall(r"```python\n# (\S+)\n(.*?)```", (DOCS / "extending.md").read_text(), re.S))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with the page's files, and with runs of two backends in `runs`."""
    folder = tmp_path_factory.mktemp("extending")
    for name, content in EXTENDING.items():
        (folder / name).write_text(content)
    for backend in ("none", "native"):
        train(folder / "runs", f"backend={backend}")
    return folder


def train(out: Path, *words: str) -> RunRecord:
    play("epochs=1", f"output_dir={out}", *words)
    return load_runs([out])[-1]


@pytest.fixture
def inside(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)


def test_the_pages_backend_and_network_train(inside: None):
    words = ("backend=./bf16_forward.py:Bf16Forward", "model.name=./wide.py:build")
    assert train(Path("mine"), *words).name == "bf16_forward_wide-py-build_synthetic"


@pytest.mark.parametrize(
    ("name", "option", "least"), [("stripes", "data.augment=false", 0.9), ("table", "data.workers=1", 0.6)]
)
def test_the_pages_data_are_learnt(inside: None, name: str, option: str, least: float):
    words = (f"data.source=./{name}.py:build", "data.train_limit=null", "data.test_limit=null", option)
    record = train(Path(name), *words, "optimizer.name=sgd", "optimizer.momentum=0.9")
    assert record.summary_number("eval/accuracy") > least


def test_the_pages_metric_is_computed_and_drawn(folder: Path):
    words = [warm_python.python(), "gap.py", "runs", "gap.html"]
    done = subprocess.run(words, cwd=folder, capture_output=True, text=True, check=False)
    assert not done.returncode, done.stderr
    assert re.fullmatch(r"none seed 223: gap \S+ points\nnative seed 223: gap \S+ points\n", done.stdout)
    assert "training minus test accuracy" in (folder / "gap.html").read_text()


@pytest.mark.slow
def test_the_example_of_a_trace_has_the_steps_of_a_run(
    tmp_path: Path, outside: Outside, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)
    outside.replace(sys, "argv", ["", *QUICK, "backend=native_bf16"])
    runpy.run_path(str(ROOT / "docs" / "examples" / "trace_steps.py"))
    names = [event.get("name", "") for event in json.loads(Path("trace.json").read_bytes())["traceEvents"]]
    assert sum(name.startswith("Optimizer.step") for name in names) == 3


MODULES_WITH_EXAMPLES = [
    path.relative_to(ROOT / "src").with_suffix("").as_posix().replace("/", ".").removesuffix(".__init__")
    for path in sorted((ROOT / "src").rglob("*.py"))
    if ">>> " in path.read_text()
]


@pytest.mark.parametrize("name", MODULES_WITH_EXAMPLES)
def test_the_examples_in_docstrings_run(inside: None, name: str):
    module = importlib.import_module(name)
    examples = [found for found in doctest.DocTestFinder().find(module) if found.examples]
    assert examples
    for example in examples:
        said = io.StringIO()
        results = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS).run(example, out=said.write)
        amp.reset()
        assert not results.failed, said.getvalue()


def test_the_public_functions_have_an_example():
    for function in (load_runs, analyse_runs, build_precision, amp.initialize):
        assert ">>> " in function.__doc__


# docs/custom-models.md: its three ways, from an empty folder to the verdict.

PAGE = (DOCS / "custom-models.md").read_text()
WAYS = dict(re.findall(r"^## (\d)\. [^\n]*\n(.*?)(?=^##+ |\Z)", PAGE, re.S | re.M))
MOST_LINES = 30


def blocks(way: str, kind: str) -> list[str]:
    return re.findall(rf"```{kind}\n(.*?)```", WAYS[way], re.S)


def files(way: str, kind: str = "python") -> dict[str, str]:
    """Return the files of a way, by the name in their first line."""
    named = (re.match(r"# (\S+\.\w+)\n", text) for text in blocks(way, kind))
    return {found[1]: text for found, text in zip(named, blocks(way, kind), strict=True) if found is not None}


@pytest.mark.parametrize("way", ["1", "2", "3"])
def test_a_way_is_short(way: str):
    (text,) = files(way).values()
    assert len((text + blocks(way, "sh")[0]).splitlines()) < MOST_LINES


@pytest.mark.slow
@pytest.mark.parametrize(
    ("way", "told"),
    [
        ("1", ("eval MSE", "native_bf16", "Eval MSE: lower is better")),
        ("2", ("accuracy", "native")),
        ("3", ("val_acc", "bf16", "Read the last val_acc (higher is better) as the metric")),
    ],
)
def test_a_way_comes_to_its_verdict(tmp_path: Path, way: str, told: tuple[str, ...]):
    for name, text in files(way).items():
        (tmp_path / name).write_text(text)
    said = [" ".join(run_commands(script, tmp_path).split()) for script in blocks(way, "sh")]
    assert [words for words in told if words not in said[0]] == [], said[0]
    assert all("paired by seed" in text and text.endswith("page: report/index.html") for text in said), said
    assert (tmp_path / "report" / "index.html").is_file()


@pytest.mark.slow
def test_the_sweep_of_the_page_drives_the_program_of_the_page_as_w_and_b_would(tmp_path: Path):
    (name,) = files("2")
    (parsing,) = re.findall(r"```text\n(import argparse\n.*?)```", PAGE, re.S)
    program = files("2")[name].replace("backend, seed = sys.argv[1], int(sys.argv[2])", parsing)
    (tmp_path / name).write_text(program.replace("range(4)", "range(1)"))
    (sweep,) = (
        block.text for block in read_blocks("docs/custom-models.md") if block.file_name == "sweep.yaml"
    )
    (tmp_path / "sweep.yaml").write_text(sweep.replace("[1, 2, 3]", "[1]"))
    said = run_commands("ampcompare sweep sweep.yaml", tmp_path)
    assert "native" in said
    assert (tmp_path / "runs" / "sweep" / "report" / "index.html").is_file(), said[-2000:]
