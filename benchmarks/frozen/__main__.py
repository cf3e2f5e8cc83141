"""Compare the behaviour of this working tree with that of an earlier commit, and print every difference.

    python benchmarks/frozen reports                     # against HEAD, so: what the uncommitted change does
    python benchmarks/frozen rows --against COMMIT       # against the commit before the issue in hand
    python benchmarks/frozen reports --sentences         # the texts, of which every change is to be read

A corpus is a set of cases, each with JSON values: numbers and decisions ("values") and texts ("sentences").
`CORPUS.py` in this folder makes them from the public API, once with the source code of the commit, once with
that of the working tree. The inputs of `reports`, `records` and `sweeps` come from the commit's own tests and
results. With `--inputs EARLIER` they come from another commit, if tests were removed since.

What the commit gives is kept in a cache folder. Differences that are intended are
listed in `intended.yaml` with their reasons; they are counted and not printed. When the issue in hand is
done, its lines go, and the next comparison is with a later commit. Exit code 1: there are differences.
"""

import argparse
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml
from values import differences

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
CORPORA = ("reports", "records", "rows", "sweeps", "why")
COLLECTED = ("reports", "records")  # made from what the tests give to the public functions
SUITES = ("tests/analysis", "tests/report", "tests/runs", "tests/publications")
MOST_LINES = 12  # printed of one case


def cache_folder() -> Path:
    """Return the folder for what is kept of commits. It may be deleted."""
    home = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache"))
    return home / "ampcompare-frozen"


def git(*words: str) -> bytes:
    """Return what git prints."""
    done = subprocess.run(["git", *words], cwd=ROOT, capture_output=True)
    if done.returncode:
        raise SystemExit(f"git {' '.join(words)}: {done.stderr.decode().strip()}")
    return done.stdout


def hash_of(commit: str, folder: str) -> str:
    """Return the short hash of a commit, or of a folder in it."""
    return git("rev-parse", "--verify", f"{commit}:{folder}" if folder else f"{commit}^{{commit}}").decode()[
        :10
    ]


def tree_of(commit: str) -> Path:
    """Return a folder with the files of a commit."""
    tree = cache_folder() / f"tree-{hash_of(commit, '')}"
    if not tree.is_dir():
        unpacked = tree.with_name(f"unpacking-{os.getpid()}")
        unpacked.mkdir(parents=True)
        subprocess.run(["tar", "x"], input=git("archive", commit), cwd=unpacked, check=True)
        unpacked.rename(tree)
    return tree


def environment(tree: Path, scratch: str) -> dict[str, str]:
    """Return the environment of a side: its source code, one thread, no account, a cache of its own."""
    kept = {
        name: value for name, value in os.environ.items() if not name.startswith(("WANDB_", "AMPCOMPARE_"))
    }
    given = {"PYTHONPATH": f"{tree / 'src'}:{HERE}", "OMP_NUM_THREADS": "1", "COLUMNS": "100"}
    given |= {"PYTHONHASHSEED": "0", "NO_COLOR": "1", "WANDB_SILENT": "true"}
    given |= {"AMPCOMPARE_CACHE": f"{scratch}/cache", "HOME": scratch, "TZ": "UTC"}
    return kept | given


def inputs_of(commit: str) -> Path:
    """Return the folder with what a commit's tests give to the public functions."""
    collector = digest(HERE / "collect.py")
    folder = cache_folder() / f"inputs-{hash_of(commit, 'tests')}-{collector}"
    if not folder.is_dir():
        tree = tree_of(commit)
        print(f"collecting inputs from the tests of {commit}", file=sys.stderr)
        making = folder.with_name(f"making-{os.getpid()}")
        with tempfile.TemporaryDirectory() as scratch:
            suites = [suite for suite in SUITES if (tree / suite).exists()]
            options = ["-q", "-p", "collect", "-p", "no:cacheprovider", "-m", "not slow and not browser"]
            command = [sys.executable, "-m", "pytest", *options, f"--basetemp={scratch}/tests", *suites]
            given = environment(tree, scratch) | {"FROZEN_INPUTS": str(making)}
            subprocess.run(command, cwd=tree, env=given, stdout=sys.stderr)
        shutil.copytree(tree / "docs" / "results", making / "results")
        # Paths are written as those of the folder with its final name.
        for file in (making / "calls.jsonl", making / "commands.jsonl"):
            file.write_text(file.read_text().replace(str(making), str(folder)))
        making.rename(folder)
    return folder


def digest(*files: Path) -> str:
    """Return a short hash of files."""
    return hashlib.sha256(b"".join(file.read_bytes() for file in sorted(files))).hexdigest()[:8]


def describe(corpus: str, tree: Path, inputs: Path, out: Path) -> dict[str, Any]:
    """Make the cases of a corpus with the source code of a tree."""
    with tempfile.TemporaryDirectory(prefix="frozen-") as scratch:
        command = [sys.executable, str(HERE / f"{corpus}.py"), str(tree), str(inputs), str(out)]
        subprocess.run(command, cwd=scratch, env=environment(tree, scratch), check=True)
    return dict(json.loads(out.read_text()))


def compare(corpus: str, old: dict[str, Any], new: dict[str, Any]) -> Iterator[tuple[str, list[str]]]:
    """Yield the cases that differ, each with its differences that are not listed as intended."""
    listed = yaml.safe_load((HERE / "intended.yaml").read_text()) or []
    patterns = {entry["differs"]: 0 for entry in listed if entry["corpus"] == corpus}
    for case in [*old, *(case for case in new if case not in old)]:
        if case not in old or case not in new:
            lines = ["is new" if case not in old else "is missing"]
        else:
            lines = [*differences(old[case], new[case])]
        left = []
        for line in lines:
            matching = [pattern for pattern in patterns if re.search(pattern, f"{case} / {line}")]
            for pattern in matching:
                patterns[pattern] += 1
            if not matching:
                left.append(line)
        if left:
            yield case, left
    for pattern, count in patterns.items():
        print(f"intended: {count} differences are {pattern!r}")


def main() -> int:
    """Compare one corpus; return the exit code."""
    parser = argparse.ArgumentParser(
        prog="python benchmarks/frozen", description=(__doc__ or "").split("\n")[0]
    )
    parser.add_argument("corpus", choices=CORPORA)
    parser.add_argument("--against", default="HEAD", metavar="COMMIT", help="default: HEAD")
    parser.add_argument("--inputs", metavar="COMMIT", help="whose tests give the inputs; default: --against")
    parser.add_argument("--sentences", action="store_true", help="compare the texts instead of the values")
    parser.add_argument("--all", action="store_true", help="print every difference of a case")
    given = parser.parse_args()
    tree = tree_of(given.against)
    source = given.inputs or given.against
    inputs = inputs_of(source) if given.corpus in COLLECTED else tree_of(source)
    parts = (
        hash_of(given.against, "src"),
        hash_of(source, "tests"),
        digest(HERE / f"{given.corpus}.py", HERE / "values.py", HERE / "networks.py"),
    )
    kept = cache_folder() / f"{given.corpus}-{'-'.join(parts)}.json"
    began = time.monotonic()
    old = json.loads(kept.read_text()) if kept.exists() else describe(given.corpus, tree, inputs, kept)
    with tempfile.TemporaryDirectory() as folder:
        new = describe(given.corpus, ROOT, inputs, Path(folder) / "new.json")
    section = "sentences" if given.sentences else "values"
    count = 0
    for case, lines in compare(given.corpus, old[section], new[section]):
        count += 1
        shown = lines if given.all else lines[:MOST_LINES]
        print("\n".join(f"{case} / {line}" for line in shown))
        if len(shown) < len(lines):
            print(f"{case} / and {len(lines) - len(shown)} more: --all prints them")
    cases = f"{len(old[section])} cases against {given.against}"
    print(f"{given.corpus}: {cases}, {count} differ; {time.monotonic() - began:.0f} s")
    if not given.sentences and repr(old["sentences"]) != repr(new["sentences"]):
        print(f"texts differ: python benchmarks/frozen {given.corpus} --against {given.against} --sentences")
    return 1 if count else 0


if __name__ == "__main__":
    raise SystemExit(main())
