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
LAYER = {package: -depth for depth, packages in enumerate(LAYERS) for package in packages}

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


def test_nothing_imports_upward_or_sideways():
    assert not offenders(
        FILES, lambda path: {p for p in packages_used(path) if LAYER[p] >= LAYER[package_of(path)]}
    )


def test_reading_and_reporting_import_no_torch():
    assert not offenders(files_of(*READING), lambda path: libraries(path) & TORCH)


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


def test_what_trains_asks_system_what_kind_of_device_it_has():
    """No `device.type`, no `x.is_cuda`; in precision/ the kind is what autocast and the casts are for."""

    def asked(path: Path) -> set[str]:
        nodes = [n for n in ast.walk(ast.parse(path.read_text())) if isinstance(n, ast.Attribute)]
        of = {ast.unparse(n) for n in nodes if n.attr in ("type", "is_cuda", "is_cpu", "is_mps")}
        return {text for text in of if not text.endswith("type") or "device" in text.rpartition(".")[0]}

    packages = ("training", "tracking", "data", "runtime", "config", "experiment")
    assert not offenders(files_of(*packages), asked)


def test_precision_needs_only_plugins_and_system():
    """So backends work in other training loops.

    `plugins` loads other people's backends. `system` knows for which 16-bit operations a CPU has kernels.
    """
    assert not offenders(files_of("precision"), lambda path: packages_used(path) - {"plugins", "system"})


def test_what_the_docs_name_is_there():
    """Tests, and the paths and functions of the architecture, whose table sends a reader to a function."""
    named = {
        match
        for page in (ROOT / "docs").glob("*.md")
        for match in re.findall(
            r"`(?:tests/)?((?:\w+/)*test_\w+\.py)(?:::(?:\.\.\.)?(\w+))?", page.read_text()
        )
    }
    files = {file: ROOT / "tests" / file for file, _ in named}
    assert not [file for file, path in files.items() if not path.is_file()]
    assert not [(file, test) for file, test in named if test not in files[file].read_text()]
    text = (ROOT / "docs" / "architecture.md").read_text()
    paths = re.findall(r"`([\w./]+(?:/|\.py|\.j2|\.css|\.js|\.md))`", text)
    assert not [path for path in paths if not any((base / path).exists() for base in (SOURCE, ROOT))]
    functions = re.findall(r"`([\w/]+\.py): (?:\w+\.)?(\w+)`", text)
    assert not [(f, name) for f, name in functions if f"def {name}(" not in (SOURCE / f).read_text()]
