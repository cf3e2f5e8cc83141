"""Which package may import which, read from the source.

A new file is under the rules of its package without being named here. A new package must be given its layer
here; docs/architecture.md describes what each package is for.
"""

import ast
import re
from collections.abc import Callable
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SOURCE = ROOT / "src" / "ampcompare"

# From the top down. A package (or a module beside the packages) imports from the layers below its own, and
# from no other package of its layer.
LAYERS = (
    {"cli"},
    {"bench", "entrypoint", "sweeps", "why"},
    {"experiment", "recorder", "report"},
    {"analysis", "training"},
    {"identity"},
    {"command_help", "config"},
    {"data", "models", "precision", "publications", "runs", "tracking"},
    {"system"},
    {"plugins", "runtime", "wandb_client"},
    {"errors", "metrics"},
)
MAX_LOOSE = 10  # modules beside the packages
LAYER = {package: -depth for depth, packages in enumerate(LAYERS) for package in packages}

# The same within analysis/, from the top down; the modules beside these packages are above them.
ANALYSIS_LAYERS = ("external", "grouping", "statistics", "options")

TORCH = {"torch", "torchvision"}
RENDERING = {"jinja2", "vl_convert", "wandb_workspaces"}
REPORT_LIBRARIES = RENDERING | {"joblib", "optuna", "pandas", "scipy", "typer"}
# What runs where records are read, and what runs while a training runs.
SHARED = {"errors", "identity", "metrics", "plugins", "wandb_client"}
READING = {"analysis", "cli", "command_help", "publications", "report", "runs", "sweeps"} | SHARED
TRAINING = set(LAYER) - READING - {"bench", "why"} | SHARED

# __main__.py calls cli, and nothing else.
FILES = sorted(set(SOURCE.rglob("*.py")) - {SOURCE / "__init__.py", SOURCE / "__main__.py"})


def name_of(path: Path) -> str:
    return ".".join(path.relative_to(SOURCE).with_suffix("").parts).removesuffix(".__init__")


def package_of(path: Path) -> str:
    """Return the folder below `ampcompare`, or the module beside these folders."""
    return name_of(path).partition(".")[0]


@cache
def imports(path: Path) -> frozenset[str]:
    """Return what a file imports anywhere in it, modules and names alike: `a.b` and `a.b.c`."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return frozenset(found)


def packages_used(path: Path) -> set[str]:
    own = {name.split(".")[1] for name in imports(path) if name.startswith("ampcompare.")}
    return own - {"__version__", package_of(path)}


def libraries(path: Path) -> set[str]:
    return {name.partition(".")[0] for name in imports(path)}


def files_of(*packages: str) -> list[Path]:
    return [path for path in FILES if package_of(path) in packages]


def offenders(files: list[Path], broken: Callable[[Path], set[str]]) -> dict[str, set[str]]:
    """Return each file that breaks a rule, and what it breaks it with."""
    return {name_of(path): found for path in files if (found := broken(path))}


def test_every_package_has_one_layer():
    assert sorted(package for packages in LAYERS for package in packages) == sorted(
        {package_of(path) for path in FILES}
    )


def test_few_modules_stand_beside_the_packages():
    assert len(list(SOURCE.glob("*.py"))) <= MAX_LOOSE


def test_nothing_imports_upward_or_sideways():
    assert not offenders(
        FILES, lambda path: {p for p in packages_used(path) if LAYER[p] >= LAYER[package_of(path)]}
    )


def test_within_the_analysis_nothing_imports_upward():
    def above(path: Path) -> set[str]:
        own = ANALYSIS_LAYERS.index(path.relative_to(SOURCE).parts[1])
        used = {name.split(".")[2] for name in imports(path) if name.startswith("ampcompare.analysis.")}
        return used - set(ANALYSIS_LAYERS[own:])

    within = [path for path in files_of("analysis") if path.relative_to(SOURCE).parts[1] in ANALYSIS_LAYERS]
    assert within
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
    assert not offenders(files_of(*READING), lambda path: libraries(path) & TORCH)


def test_the_analysis_renders_nothing():
    assert not offenders(files_of("analysis"), lambda path: libraries(path) & RENDERING)


def test_training_imports_none_of_the_reports_libraries():
    reading = {"analysis", "report", "runs", "sweeps"}
    assert not offenders(
        files_of(*TRAINING), lambda path: libraries(path) & REPORT_LIBRARIES | packages_used(path) & reading
    )


def test_what_trains_names_no_backend():
    def named(path: Path) -> set[str]:
        strings = {n.value for n in ast.walk(ast.parse(path.read_text())) if isinstance(n, ast.Constant)}
        return strings & {"none", "native", "apex_o1", "apex_o2", "fp16"}

    assert not offenders(files_of(*(TRAINING - {"precision", "config"})), named)


def test_speed_is_measured_by_one_protocol():
    """So that `bench`, `why explain` and `benchmarks/overhead.py` cannot disagree."""

    def measured(path: Path) -> set[str]:
        text = path.read_text()
        return {word for word in ("perf_counter", ".shuffle(", ".sample(") if word in text}

    files = [*files_of("bench", "why"), ROOT / "benchmarks" / "overhead.py", ROOT / "benchmarks" / "loops.py"]
    assert not [path for path in files if measured(path)]
    assert measured(SOURCE / "system" / "interleaved_timing.py")  # so it would be found


def test_names_of_step_keys_stand_in_one_module():
    def named(path: Path) -> set[str]:
        strings = {n.value for n in ast.walk(ast.parse(path.read_text())) if isinstance(n, ast.Constant)}
        return strings & {"trainer/global_step", "train/global_step", "iteration", "train/epoch"}

    assert {*offenders(files_of("runs", "analysis", "report", "metrics"), named)} == {"runs.step_keys"}


def test_what_trains_asks_system_what_kind_of_device_it_has():
    """No `device.type`, no `x.is_cuda`; in precision/ the kind is what autocast and the casts are for."""

    def asked(path: Path) -> set[str]:
        nodes = [n for n in ast.walk(ast.parse(path.read_text())) if isinstance(n, ast.Attribute)]
        of = {ast.unparse(n) for n in nodes if n.attr in ("type", "is_cuda", "is_cpu", "is_mps")}
        return {text for text in of if not text.endswith("type") or "device" in text.rpartition(".")[0]}

    packages = ("training", "tracking", "data", "runtime", "config", "experiment")
    assert not offenders(files_of(*packages), asked)
    assert offenders(files_of("system"), asked)  # so it would be found


def test_what_trains_names_float64_only_among_dtypes_that_it_takes():
    """Not every device has it. `system.device.widest_float` says what to compute in."""

    def named(path: Path) -> set[str]:
        nodes = [*ast.walk(ast.parse(path.read_text()))]
        listed = [item for node in nodes if isinstance(node, ast.Tuple) for item in node.elts]
        attributes = [node for node in nodes if isinstance(node, ast.Attribute) and node not in listed]
        of_torch = {ast.unparse(node) for node in attributes} & {"torch.float64", "torch.double"}
        return of_torch | {ast.unparse(node) for node in attributes if node.attr == "double"}

    packages = ("training", "recorder", "precision", "experiment")
    assert not offenders(files_of(*packages), named)
    assert offenders(files_of("system"), named)  # so it would be found


def test_precision_needs_only_plugins_and_system():
    """So backends work in other training loops.

    `plugins` loads other people's backends. `system` knows for which 16-bit operations a CPU has kernels.
    """
    assert not offenders(files_of("precision"), lambda path: packages_used(path) - {"plugins", "system"})


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


def test_every_path_that_the_architecture_names_is_there():
    text = (ROOT / "docs" / "architecture.md").read_text()
    named = re.findall(r"`([\w./]+(?:/|\.py|\.j2|\.css|\.js|\.md))`", text)
    assert not [name for name in named if not any((base / name).exists() for base in (SOURCE, ROOT))]


def test_every_function_that_the_architecture_names_is_in_its_file():
    """The table "Where it is decided" sends a reader to a function."""
    text = (ROOT / "docs" / "architecture.md").read_text()
    named = re.findall(r"`([\w/]+\.py): (?:\w+\.)?(\w+)`", text)
    assert len(named) >= 12
    lost = [(f, name) for f, name in named if f"def {name}(" not in (SOURCE / f).read_text()]
    assert not lost
