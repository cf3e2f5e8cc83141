"""The corpus of sweeps: the points of sweep files in their order, and 24 scenes with a stub program.

Values: the points, as a program gets them; of a scene, exit codes, how often each point began, and whether a
process is left. Sentences: messages, `--status`, the plan and the journal, without times, ids and paths.
Scenes and sweep files are those of the commit's tree (`tests/support/sweep_scenarios.py`, `sweeps/`). The
scenes went after the sweeps were rebuilt: give a commit that has them, such as `--inputs 763bed21`.
"""

import os
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import psutil
import yaml
from values import command, write

PARAMETERS: dict[str, Any] = {
    "categorical": {"values": ["a", 1, True, 2.5], "probabilities": [0.2, 0.3, 0.1, 0.4]},
    "int": {"min": -3, "max": 40},
    "uniform": {"min": 0.5, "max": 2.5},
    "q": {"distribution": "q_uniform", "min": 0.1, "max": 4.9, "q": 0.3},
    "log": {"distribution": "log_uniform_values", "min": 0.0001, "max": 1.0},
    "inv": {"distribution": "inv_log_uniform_values", "min": 0.1, "max": 10},
    "normal": {"distribution": "normal", "mu": 3, "sigma": 0.5},
    "beta": {"distribution": "beta", "a": 2, "b": 5},
    "nested": {"parameters": {"lr": {"min": 0.0, "max": 1.0}, "n": {"min": 1, "max": 9}}},
}
# The program of a sweep of points: it notes its words and ends.
NOTE = ["/bin/sh", "-c", 'echo "$@" >> "$POINTS"', "note", "${args_no_hyphens}"]
MOST_DIGITS = 6  # of a point; those that TPE draws have more, and differ each time
SLEEPY = ("hyperband",)  # what it stops depends on the time


def files(tree: Path) -> dict[str, dict[str, Any]]:
    """Return sweeps by name: those that are shipped, and searches over each kind of distribution."""
    found = {path.stem: yaml.safe_load(path.read_text()) for path in sorted((tree / "sweeps").glob("*.yaml"))}
    search = {"method": "random", "run_cap": 12, "parameters": PARAMETERS}
    return found | {"search": search, "another": search | {"run_cap": 4, "metric": {"name": "score"}}}


def points_of(name: str, content: dict[str, Any]) -> tuple[Any, list[str]]:
    """Run a sweep with a program that notes its words; return these, and what was printed."""
    folder = Path.cwd() / name
    folder.mkdir()
    (folder / "p.py").write_text("")
    file = folder / f"{name}.yaml"
    noted = {key: value for key, value in content.items() if key not in ("early_terminate", "program")}
    noted = noted | {"program": "p.py", "command": NOTE}
    os.environ["POINTS"] = str(folder / "points")  # not in the command, which the draws depend on
    file.write_text(yaml.safe_dump(noted, sort_keys=False))
    os.chdir(folder)
    code, _ = command(["sweep", file.name, "output_dir=out", "--workers=1"])
    os.chdir(folder.parent)
    points = (folder / "points").read_text().splitlines() if (folder / "points").exists() else []
    return {"exit code": code, "points": points}, []


def scenes(tree: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """Play the scenes."""
    sys.path.insert(0, str(tree / "tests" / "support"))
    from sweep_scenarios import SCENES, describe

    import ampcompare

    source = Path(ampcompare.__file__).parents[1]
    values, sentences = {}, {}
    names = [play.__name__ for play in SCENES if play.__name__ not in SLEEPY]
    for name, told in describe(source, Path.cwd() / "scenes", names):
        folder = Path.cwd() / "scenes" / name
        begun = (folder / "begun").read_text().split() if (folder / "begun").exists() else []
        begun = [point if len(point) < MOST_DIGITS else "DRAWN" for point in begun]
        commands = told["commands"]
        values[name] = {
            "exit codes": [one.get("exit code", one.get("status")) for one in commands],
            "begun": dict(sorted(Counter(begun).items())),
            "left": [process for process in psutil.process_iter() if is_below(process, folder)],
            "ends": ends(told["journal"]),
        }
        sentences[name] = [line for one in commands for line in one["lines"]] + sorted(told["journal"])
    return values, sentences


def ends(journal: list[str]) -> list[str]:
    """Return the lines of the journal that tell how runs ended, in no order."""
    return sorted(line for line in journal if '"state"' in line)


def is_below(process: psutil.Process, folder: Path) -> bool:
    """Return whether a process belongs to a scene."""
    try:
        return process.cwd().startswith(str(folder)) and process.status() != psutil.STATUS_ZOMBIE
    except psutil.Error:
        return False


def main() -> None:
    """Write the corpus."""
    tree = Path(sys.argv[2])
    values, sentences = scenes(tree)
    for name, content in files(tree).items():
        if content["method"] == "bayes":
            continue  # without values of its metric it draws other points each time
        case = f"points of {name}"
        values[case], sentences[case] = points_of(name, content)
        if content["method"] == "grid" and (tree / "sweeps" / f"{name}.yaml").exists():
            code, output = command(["sweep", name, "--plan"])
            values[f"plan of {name}"] = code
            sentences[f"plan of {name}"] = output.replace(str(Path.cwd()), "HERE").splitlines()
    write(values, sentences)


if __name__ == "__main__":
    main()
