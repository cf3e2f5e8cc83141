"""The pages that a new user follows: every file and every command of theirs works as the page shows it.

Where the page trains for minutes, the test trains less: `SHORTER` replaces only counts, of epochs, seeds,
samples, steps and minutes.
"""

import ast
import re
from pathlib import Path

import pytest
from support.documents import SHELL, Block, read_blocks, run_commands, write_files
from support.quick import ROOT

README = "README"
PAGES = ("getting-started", "sequences", "tf32-to-amp", "custom-models", "backends", "extending")
# What the page has, and what the test takes in its place.
SHORTER = {
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


def path_of(name: str) -> Path:
    return ROOT / "README.md" if name == README else ROOT / "docs" / f"{name}.md"


def page(name: str) -> list[Block]:
    return read_blocks(str(path_of(name).relative_to(ROOT)))


@pytest.mark.parametrize("name", PAGES)
def test_the_python_of_a_page_is_in_files_that_are_valid(name: str):
    blocks = [block for block in page(name) if block.kind == "python"]
    for block in blocks:
        assert block.file_name, block.text
        ast.parse(block.text)


LINKING = (README, *(path.stem for path in (ROOT / "docs").glob("*.md")))


@pytest.mark.parametrize("name", sorted(LINKING))
def test_the_links_of_a_page_lead_somewhere(name: str):
    text = path_of(name).read_text()
    for target, anchor in re.findall(r"\]\(((?!https?:)[^)#]*)#?([^)]*)\)", text):
        other = (path_of(name).parent / target).resolve() if target else path_of(name)
        assert other.exists(), target
        if anchor:
            headings = re.findall(r"^#+ (.*)$", other.read_text(), re.M)
            anchors = {re.sub(r"[^\w\- ]", "", head.lower()).replace(" ", "-") for head in headings}
            assert anchor in anchors, f"{target}#{anchor}"


def sections(name: str) -> list[str]:
    """Return the sections of a page that have commands to run."""
    return list(dict.fromkeys(block.section for block in page(name) if block.commands))


def is_run_by_test_pages(name: str, section: str) -> bool:
    """Return whether tests/test_pages.py runs a section: the three ways of custom-models.md, a figure."""
    is_way = name == "custom-models" and section[:1] in ("1", "2", "3")
    return is_way or (name, section) == ("extending", "A figure of your own")


def sections_to_run(name: str) -> list[str]:
    """Return the sections of a page that are run here, in the order of the page."""
    if name == README:
        return ["Measure your own network", "Compare training quality"]
    return [section for section in sections(name) if not is_run_by_test_pages(name, section)]


# The same on every page, so it runs in one section.
DOCTOR = re.compile(r"^ampcompare doctor.*$", re.M)
DOCTOR_SECTION = ("getting-started", "2. Ask what the machine can do")
SEGMENTATION_RESULT = [
    line for block in page("custom-models") for line in block.text.splitlines() if "image_iou 0." in line
]
TOLD = {  # what a section's commands print: its verdict, or the end of what it measures
    (README, "Compare training quality"): "page: report/index.html",
    DOCTOR_SECTION: "float16",
    ("getting-started", "5. Read the verdict"): "page: report/index.html",
    ("sequences", "A Hugging Face Trainer"): "bf16-mixed",
    ("sequences", "Padded text and an LSTM"): "runs/compare_backends/report/index.html",
    ("tf32-to-amp", "2. Plan the accuracy comparison"): "5 seeds: 15 runs",
    ("tf32-to-amp", "5. Change your training script"): "loss ",
    ("custom-models", "Lightning"): "bf16-mixed",
    ("custom-models", "Accelerate"): "native_bf16",
    ("custom-models", "Segmentation in our loop"): "\n".join(SEGMENTATION_RESULT),
    ("custom-models", "Segmentation in your loop, with an EMA"): "mean_iou",
}


def write_page_files(name: str, folder: Path) -> None:
    """Write the files that a page shows, and those that it takes from another page, as it says."""
    write_files(page(name), folder, SHORTER)
    others = {"backends": "getting-started", "tf32-to-amp": README}
    if name in others:
        write_files(page(others[name]), folder, SHORTER)


@pytest.mark.slow
@pytest.mark.parametrize("name", [README, *PAGES])
def test_the_commands_of_a_page_work_one_after_another(name: str, tmp_path: Path):
    """A section may need what the one before it wrote, so a page is one test."""
    write_page_files(name, tmp_path)
    for section in sections_to_run(name):
        scripts = [block.commands for block in page(name) if block.section == section]
        if (name, section) != DOCTOR_SECTION:
            scripts = [DOCTOR.sub("", script) for script in scripts]
        printed = "".join(run_commands(script, tmp_path, SHORTER) for script in scripts if script.strip())
        assert TOLD.get((name, section), "") in printed, section


@pytest.mark.slow
def test_the_python_of_backends_runs(tmp_path: Path):
    write_page_files("backends", tmp_path)
    printed = run_commands("python own_loop.py && python apex_script.py", tmp_path)
    assert "Error" not in printed


def test_what_the_tests_shorten_is_on_a_page():
    texts = "".join(block.text.replace("\\\n", " ") for name in (README, *PAGES) for block in page(name))
    assert [words for words in SHORTER if words not in texts] == []


@pytest.mark.parametrize(
    ("file_name", "names"),
    [("data.py", (README, "getting-started")), ("net.py", (README, "getting-started"))],
)
def test_the_pages_share_their_files(file_name: str, names: tuple[str, ...]):
    texts = [block.text for name in names for block in page(name) if block.file_name == file_name]
    assert len(texts) == len(names)
    assert len(set(texts)) == 1


def test_blocks_that_need_something_are_not_run():
    blocks = [block for block in page("sequences") if block.kind in SHELL]
    assert any(not block.commands for block in blocks)
    assert not any("tf32" in block.commands or "pip install" in block.commands for block in blocks)
