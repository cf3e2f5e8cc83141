"""Commands, programs and figures of the pages and the docstrings are true, and run as they stand.

Where a page trains for minutes, the test trains less: `SHORTER` replaces only counts, of epochs, seeds,
samples, steps and minutes.
"""

import doctest
import importlib
import io
import re
from pathlib import Path

import pytest
from support.documents import read_blocks, run_commands, write_files
from support.quick import ROOT
from support.training import play

from ampcompare import load_runs, metrics
from ampcompare.precision.apex import amp
from ampcompare.runs import RunRecord

DOCS = ROOT / "docs"
README = "README.md"


def test_the_table_of_metrics_has_every_one_with_its_unit_and_time():
    told = {}
    for line in (DOCS / "metrics.md").read_text().splitlines():
        if line.startswith("| `"):
            keys, _, unit, when = (cell.strip() for cell in line.strip("|").split("|"))
            told |= dict.fromkeys(re.findall(r"`([^`]+)`", keys), (unit, when))
    assert told == {m.key: (m.unit, m.when) for m in metrics.METRICS.values()}


def test_the_links_of_the_pages_lead_somewhere(subtests: pytest.Subtests):
    for page in (ROOT / README, *DOCS.glob("*.md")):
        for target, anchor in re.findall(r"\]\(((?!https?:)[^)#]*)#?([^)]*)\)", page.read_text()):
            with subtests.test(page=page.name, target=target, anchor=anchor):
                other = (page.parent / target).resolve() if target else page
                assert other.exists()
                headings = re.findall(r"^#+ (.*)$", other.read_text(), re.M) if anchor else []
                anchors = {re.sub(r"[^\w\- ]", "", head.lower()).replace(" ", "-") for head in headings}
                assert not anchor or anchor in anchors


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with the files of docs/extending.md, and with runs of two backends in `runs`."""
    folder = tmp_path_factory.mktemp("extending")
    write_files(read_blocks("docs/extending.md"), folder)
    for backend in ("none", "native"):
        train(folder / "runs", f"backend={backend}")
    return folder


def train(out: Path, *words: str) -> RunRecord:
    play("epochs=1", f"output_dir={out}", *words)
    return load_runs([out])[-1]


@pytest.fixture
def inside(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)


@pytest.mark.parametrize(
    ("name", "option", "least"), [("stripes", "data.augment=false", 0.9), ("table", "data.workers=1", 0.6)]
)
def test_the_pages_data_are_learnt(inside: None, name: str, option: str, least: float):
    words = (f"data.source=./{name}.py:build", "data.train_limit=null", "data.test_limit=null", option)
    record = train(Path(name), *words, "optimizer.name=sgd", "optimizer.momentum=0.9")
    assert record.summary_number("eval/accuracy") > least


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


# The commands of the pages.

SHORTER = {
    "ampcompare report ": "ampcompare report --format html ",
    "ampcompare doctor  ": "true  ",  # it runs in getting-started.md
    "build --json bench.json": "build backend=none,native_bf16 --json bench.json",
    "build epochs=5": "build backend=none,native_bf16 epochs=5",
    "seed=1,2,3 epochs=3": "seed=1 epochs=1",
    "4000 if train else 800": "256 if train else 128",
    "--config demo": "--config demo epochs=1 batch_size=32 data.train_limit=64 data.test_limit=32",
    "build data.train_limit=null": "build data.kwargs.count=64 data.train_limit=null",
    "4000 if train else 2000": "256 if train else 128",
    "epochs=5": "epochs=1 seed=1",
    "epochs=3 ": "epochs=1 seed=1 ",
    '"num_train_epochs": 3': '"num_train_epochs": 1',
    "max_epochs=4": "max_epochs=1",
    "batch_size=50 epochs=4": "batch_size=50 epochs=1 data.kwargs.count=100",
    "range(4)": "range(1)",
    "for seed in 1 2 3": "for seed in 1",
    "--json bench.json": "--minutes 0.1 --json bench.json",
    "backend=none,native_bf16\nampcompare run": "backend=none,native_bf16 --minutes 0.1\nampcompare run",
}
# Pages that take their files from another page, as they say.
FILES_OF = {"docs/backends.md": "docs/getting-started.md", "docs/tf32-to-amp.md": README}
# The other commands of README are make's, and those of clusters, which tests/sweeps and tests/online run.
ONLY = {README: ("Measure your own network", "Compare training quality")}
# Text that the commands of a section print: the verdict, or the end of what they measure.
TOLD = {
    (README, "Compare training quality"): "page: report/index.html",
    ("docs/getting-started.md", "2. Ask what the machine can do"): "float16",
    ("docs/getting-started.md", "5. Read the verdict"): "page: report/index.html",
    ("docs/sequences.md", "A Hugging Face Trainer"): "bf16-mixed",
    ("docs/sequences.md", "Padded text and an LSTM"): "runs/compare_backends/report/index.html",
    ("docs/tf32-to-amp.md", "2. Plan the accuracy comparison"): "5 seeds: 15 runs",
    ("docs/tf32-to-amp.md", "5. Change your training script"): "loss ",
    ("docs/custom-models.md", "1. Our loop"): "Eval MSE: lower is better",
    ("docs/custom-models.md", "2. Your loop, with a Recorder"): "native",
    ("docs/custom-models.md", "3. Nothing changed"): "val_acc",
    ("docs/custom-models.md", "Lightning"): "bf16-mixed",
    ("docs/custom-models.md", "Accelerate"): "native_bf16",
    ("docs/custom-models.md", "Segmentation in your loop, with an EMA"): "mean_iou",
    ("docs/extending.md", "A figure of your own"): " gap ",
}
PAGES = sorted({page for page, _ in TOLD} | FILES_OF.keys())


@pytest.mark.slow
@pytest.mark.parametrize("page", PAGES)
def test_the_commands_of_a_page_work_one_after_another(page: str, tmp_path: Path):
    """A section may need what the one before it wrote, so a page is one test."""
    blocks = read_blocks(page)
    folder = tmp_path
    found = {}
    for section in dict.fromkeys(block.section for block in blocks if block.commands):
        if section not in ONLY.get(page, (section,)):
            continue
        if page == "docs/custom-models.md":  # its sections are several ways to the same
            folder = tmp_path / str(len(found))
            folder.mkdir()
        for source in filter(None, (page, FILES_OF.get(page))):
            write_files(read_blocks(source), folder, SHORTER)
        scripts = [block.commands for block in blocks if block.section == section]
        found[page, section] = "".join(run_commands(script, folder, SHORTER) for script in scripts if script)
    assert [key for key, words in TOLD.items() if key[0] == page and words not in found[key]] == []


@pytest.mark.slow
def test_the_python_of_backends_runs(tmp_path: Path):
    write_files(read_blocks("docs/backends.md"), tmp_path)
    assert "Error" not in run_commands("python own_loop.py && python apex_script.py", tmp_path)
