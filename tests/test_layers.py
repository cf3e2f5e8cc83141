"""Who may import whom, read from the source: the rules of the architecture, by folder, as docs/house.md draws
them.

A new file is under the rules of its room without anyone naming it; a new room must be given its floor.
"""

import ast
import re
from collections.abc import Callable
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SOURCE = ROOT / "src" / "ampcompare"

# From the roof down, as the house is drawn. A room may import from the floors below its own, none from its
# own floor or above.
DRAWING = (ROOT / "docs" / "house.md").read_text().split("```")[1]
FLOORS = [re.findall(r"^(\w+)(?:/|\.py) ", floor, re.M) for floor in DRAWING.split("\n\n")]
FLOOR = {room: -depth for depth, rooms in enumerate(FLOORS) for room in rooms}

# The same within the report; what lies loose in it puts the rooms together.
REPORT_FLOORS = ("statistics", "runs", "external", "analysis", "charts", "page")

TORCH = {"torch", "torchvision"}
REPORT_LIBRARIES = {"jinja2", "joblib", "optuna", "pandas", "scipy", "typer", "vl_convert"}
# What runs where someone only looks at records, and what runs while something trains.
READING = {"records", "report", "published", "sweeps", "cli", "__main__"}
READING |= {"errors", "metrics", "plugins", "wandb_client"}
TRAINING = set(FLOOR) - READING - {"bench", "demo", "why"} | {"errors", "metrics", "plugins", "wandb_client"}

FILES = sorted(set(SOURCE.rglob("*.py")) - {SOURCE / "__init__.py"})


def name_of(path: Path) -> str:
    return ".".join(path.relative_to(SOURCE).with_suffix("").parts).removesuffix(".__init__")


def room_of(path: Path) -> str:
    """The folder below the package, or the module at its top."""
    return name_of(path).partition(".")[0]


@cache
def imports(path: Path) -> frozenset[str]:
    """Every module that a file imports anywhere in it, and what it takes from it: `a.b` and `a.b.c`."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return frozenset(found)


def rooms_used(path: Path) -> set[str]:
    ours = {name.split(".")[1] for name in imports(path) if name.startswith("ampcompare.")}
    return ours - {"__version__", room_of(path)}


def libraries(path: Path) -> set[str]:
    return {name.partition(".")[0] for name in imports(path)}


def of(*rooms: str) -> list[Path]:
    return [path for path in FILES if room_of(path) in rooms]


def offenders(files: list[Path], broken: Callable[[Path], set[str]]) -> dict[str, set[str]]:
    """Each file that breaks a rule, and what it breaks it with."""
    return {name_of(path): found for path in files if (found := broken(path))}


def test_every_room_is_drawn_once_and_no_other():
    assert sorted(room for rooms in FLOORS for room in rooms) == sorted({room_of(path) for path in FILES})


def test_nothing_imports_upward_or_sideways():
    assert not offenders(
        FILES, lambda path: {r for r in rooms_used(path) if FLOOR[r] >= FLOOR[room_of(path)]}
    )


def test_within_the_report_nothing_imports_upward():
    def above(path: Path) -> set[str]:
        here = name_of(path).split(".")[1]
        rooms = {name.split(".")[2] for name in imports(path) if name.startswith("ampcompare.report.")}
        return rooms & set(REPORT_FLOORS[REPORT_FLOORS.index(here) + 1 :])

    within = [path for path in of("report") if path.relative_to(SOURCE).parts[1] in REPORT_FLOORS]
    assert not offenders(within, above)


def test_no_two_modules_import_each_other_in_a_circle():
    modules = {f"ampcompare.{name_of(path)}": path for path in FILES}

    def targets(path: Path) -> set[str]:
        found = {full if full in modules else full.rpartition(".")[0] for full in imports(path)}
        return found & set(modules)

    done: set[str] = set()

    def walk(name: str, trail: tuple[str, ...]) -> None:
        assert name not in trail, " -> ".join((*trail[trail.index(name) :], name))
        if name not in done:
            for target in targets(modules[name]) - {name}:
                walk(target, (*trail, name))
            done.add(name)

    for name in modules:
        walk(name, ())


def test_reading_and_reporting_import_no_torch():
    assert not offenders(of(*READING), lambda path: libraries(path) & TORCH)


def test_training_imports_none_of_the_reports_libraries():
    assert not offenders(
        of(*TRAINING),
        lambda path: libraries(path) & REPORT_LIBRARIES | rooms_used(path) & {"report", "records", "sweeps"},
    )


def test_what_trains_names_no_backend():
    def named(path: Path) -> set[str]:
        strings = {n.value for n in ast.walk(ast.parse(path.read_text())) if isinstance(n, ast.Constant)}
        return strings & {"none", "native", "apex_o1", "apex_o2", "fp16"}

    assert not offenders(of(*(TRAINING - {"precision", "config"})), named)


def test_what_trains_asks_the_machine_what_kind_of_device_it_has():
    """No `device.type`, no `x.is_cuda`; in precision/ the kind is what autocast and the casts are for."""

    def asked(path: Path) -> set[str]:
        nodes = [n for n in ast.walk(ast.parse(path.read_text())) if isinstance(n, ast.Attribute)]
        of = {ast.unparse(n) for n in nodes if n.attr in ("type", "is_cuda", "is_cpu", "is_mps")}
        return {text for text in of if not text.endswith("type") or "device" in text.rpartition(".")[0]}

    rooms = ("train", "tracking", "data", "program", "config", "experiment")
    assert not offenders(of(*rooms), asked)
    assert offenders(of("machine"), asked)  # so it would be found


def test_precision_needs_only_the_plug_in_loader_and_the_machine():
    """Backends stay usable in other people's loops. The loader lets other people's backends in; the machine
    says which 16-bit operations a CPU has kernels for.
    """
    assert not offenders(of("precision"), lambda path: rooms_used(path) - {"plugins", "machine"})


def test_installing_is_left_to_the_machines_own_package_index():
    files = ["Makefile", "README.md", "pyproject.toml", "constraints.txt", ".ci/run"]
    assert not [f for f in files if re.search("://|index-url", (ROOT / f).read_text())]


def test_every_test_that_the_docs_name_is_there():
    named = {
        (page.name, *match)
        for page in (ROOT / "docs").glob("*.md")
        for match in re.findall(
            r"`(?:tests/)?((?:\w+/)*test_\w+\.py)(?:::(?:\.\.\.)?(\w+))?", page.read_text()
        )
    }
    lost = [n for n in named if not (ROOT / "tests" / n[1]).is_file()]
    assert not lost
    assert not [n for n in named if n[2] not in (ROOT / "tests" / n[1]).read_text()]
