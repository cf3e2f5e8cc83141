"""Plant small faults (mutants) in the package and see which test files find them.

    OMP_NUM_THREADS=1 nice -n 5 .venv/bin/python tests/support/mutants.py mutants.json

The program copies the tree into a temporary folder and never changes the checkout. First it runs each test
file alone, on code without a fault, and notes the time of each test and the lines of the package that the
test executes in its own process. Then it writes one mutant at a time into the copy and runs the tests that
execute the changed statement, one test file after the other. A test file ends at its first failure. Tests
marked `slow` do not run.

The result has the seconds of each test file and, for each mutant, the test that each file found it with
(`killed_by`). A mutant that no test file found has survived: no test checks its statement, or the changed
program does the same as the original. `--table` prints a result, and `--coverage FILE` keeps what the tests
execute for the next call. After tests were added or removed, `--again EARLIER` tries only the mutants of an
earlier result that survived, or that no remaining test had found.
"""

import argparse
import ast
import copy
import ctypes
import hashlib
import json
import os
import random
import re
import shutil
import sys
import tempfile
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, NamedTuple

import psutil
import pytest

Node = ast.expr | ast.stmt

ROOT = Path(__file__).resolve().parents[2]
SOURCE = "src/ampcompare"


@dataclass(frozen=True)
class Group:
    """Modules that get mutants, and the test files that may find them; patterns of paths."""

    modules: tuple[str, ...]
    suites: tuple[str, ...]


# Each group gets the same number of mutants. Test files that use the modules only on their way to something
# else are left out.
GROUPS = {
    "precision": Group(
        ("precision/**/*.py",),
        (
            "precision/**/test_*.py",
            "recorder/test_recorded_weights.py",
            "training/test_arriving_weights.py",
            "training/test_buffers.py",
            "training/test_nonfinite_weights.py",
            "training/test_overflow_detection.py",
            "training/test_trainer.py",
        ),
    ),
    "statistics": Group(
        ("analysis/statistics/*.py",),
        (
            "analysis/statistics/test_*.py",
            "analysis/test_*.py",
            "bench/test_bench.py",
            "bench/test_restarts.py",
            "test_pages.py",
        ),
    ),
    "grouping": Group(("analysis/grouping/*.py",), ("analysis/grouping/test_*.py", "analysis/test_*.py")),
    "checkpoint": Group(
        ("training/checkpoint/*.py",),
        ("training/checkpoint/test_*.py", "identity/test_*.py", "test_training_session.py"),
    ),
    "sweeps": Group(
        ("sweeps/journal.py", "sweeps/decisions.py", "sweeps/run_end.py"),
        (
            "sweeps/test_decisions.py",
            "sweeps/test_driver.py",
            "sweeps/test_journal.py",
            "sweeps/test_recovery.py",
            "sweeps/test_run_end.py",
            "sweeps/test_run_process.py",
            "sweeps/test_run_records.py",
            "sweeps/test_scenarios.py",
            "sweeps/test_series.py",
            "sweeps/test_slurm_task.py",
            "sweeps/test_status.py",
            "sweeps/test_stop_request.py",
            "sweeps/test_sweep_folder.py",
        ),
    ),
}
LEFT_OUT = [".git", ".venv*", "__pycache__", ".*_cache", ".hypothesis", "wandb", "outputs"]
SET_CHILD_SUBREAPER = 36  # of prctl(2): processes whose parent has ended become children of this process
PAUSE = 0.05  # seconds between two looks at a child process

COMPARISONS: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
}
ARITHMETIC: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Div,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Div,
    ast.Mod: ast.Mult,
    ast.Pow: ast.Mult,
}
# Names of calls that write a message. Nothing inside such a call is changed.
MESSAGES = {"debug", "info", "warning", "error", "exception", "warn", "UserError", "echo", "print"}


@dataclass(frozen=True)
class Mutant:
    """One fault: a piece of a module and its replacement.

    Attributes:
        module: Path relative to the tree.
        line: Line where the piece begins, from 1.
        statement: First and last line of the statement around the piece, without the statements inside it.
        start: First byte of the piece in the module.
        end: First byte after the piece.
        kind: Name of the operator, such as "comparison".
        before: The piece.
        after: The replacement.
    """

    module: str
    line: int
    statement: tuple[int, int]
    start: int
    end: int
    kind: str
    before: str
    after: str

    def applied_to(self, text: bytes) -> bytes:
        """Return the text of the module with the fault."""
        assert text[self.start : self.end].decode() == self.before, f"{self.module} has changed"
        return text[: self.start] + self.after.encode() + text[self.end :]


class Executed(NamedTuple):
    """What a test does with code without a fault: its seconds, and the lines that it executes in modules."""

    seconds: float
    lines: dict[str, list[int]]


# Test file -> test -> what it executes; only tests that pass.
Coverage = dict[str, dict[str, Executed]]


def mutants_of(module: str, text: str) -> list[Mutant]:
    """Return all mutants of a module in the order of its text."""
    data = text.encode()
    line_starts = [0]
    for line in data.splitlines(keepends=True):
        line_starts.append(line_starts[-1] + len(line))
    mutants = []
    for node, statement, kind, replacement in changes(ast.parse(text)):
        start = line_starts[node.lineno - 1] + node.col_offset
        end = line_starts[(node.end_lineno or 0) - 1] + (node.end_col_offset or 0)
        before = data[start:end].decode()
        after = ast.unparse(ast.fix_missing_locations(replacement))
        if isinstance(replacement, ast.expr):
            after = f"({after})"
        mutants.append(Mutant(module, node.lineno, own_lines(statement), start, end, kind, before, after))
    return sorted(mutants, key=lambda mutant: (mutant.start, mutant.end, mutant.kind, mutant.after))


def changes(tree: ast.Module) -> Iterator[tuple[Node, ast.stmt, str, Node]]:
    """Yield (node, its statement, name of the operator, replacement) for every fault of a module."""
    waiting: list[tuple[ast.AST, ast.stmt]] = [(statement, statement) for statement in tree.body]
    while waiting:
        node, statement = waiting.pop()
        for changed_node, kind, replacement in changes_of(node):
            yield changed_node, statement, kind, replacement
        for child in changeable_children(node):
            waiting.append((child, child if isinstance(child, ast.stmt) else statement))


def own_lines(statement: ast.stmt) -> tuple[int, int]:
    """Return the first and last line of a statement without the statements inside it."""
    body = getattr(statement, "body", None)
    last = body[0].lineno - 1 if body else statement.end_lineno or statement.lineno
    return statement.lineno, max(statement.lineno, last)


def changeable_children(node: ast.AST) -> list[ast.AST]:
    """Return the children of a node without texts, messages, annotations and decorators."""
    if isinstance(node, ast.JoinedStr | ast.Raise | ast.Assert):
        return []
    if isinstance(node, ast.Call) and name_of(node.func) in MESSAGES:
        return []
    children: list[ast.AST] = []
    for name, value in ast.iter_fields(node):
        if name in ("annotation", "returns", "decorator_list"):
            continue
        values = value if isinstance(value, list) else [value]
        children += [child for child in values if isinstance(child, ast.AST)]
    return children


def changes_of(node: ast.AST) -> Iterator[tuple[Node, str, Node]]:
    """Yield (node, name of the operator, replacement) for the faults of one node without its children."""
    match node:
        case ast.Compare(ops=[operator]) if type(operator) in COMPARISONS:
            yield node, "comparison", changed(node, ops=[COMPARISONS[type(operator)]()])
        case ast.BinOp() | ast.AugAssign() if type(node.op) in ARITHMETIC and not has_text(node):
            yield node, "arithmetic", changed(node, op=ARITHMETIC[type(node.op)]())
        case ast.BoolOp():
            yield node, "and/or", changed(node, op=ast.Or() if isinstance(node.op, ast.And) else ast.And())
        case ast.UnaryOp(op=ast.Not()):
            yield node, "not", node.operand
        case ast.UnaryOp(op=ast.USub()):
            yield node, "arithmetic", node.operand
        case ast.Constant(value=bool()):
            yield node, "constant", ast.Constant(not node.value)
        case ast.Constant(value=int() | float() as number):
            yield node, "constant", ast.Constant(number + 1)
            yield node, "constant", ast.Constant(number - 1)
        case ast.IfExp() if not is_text(node.body):
            yield node, "branches", changed(node, body=node.orelse, orelse=node.body)
        case ast.If() if name_of(node.test) != "TYPE_CHECKING" and not is_negated_elsewhere(node.test):
            yield node.test, "branches", ast.UnaryOp(ast.Not(), node.test)
        case ast.Return(value=ast.expr()) if not isinstance(node.value, ast.JoinedStr | ast.Constant):
            yield node, "return", ast.Return(ast.Constant(None))
    match node:
        case ast.Raise() | ast.Continue() | ast.Break() | ast.Delete() | ast.AugAssign():
            yield node, "statement", ast.Pass()
        case ast.Expr(value=ast.Call() as call) if name_of(call.func) not in MESSAGES:
            yield node, "statement", ast.Pass()
        case ast.Assign(targets=[ast.Attribute() | ast.Subscript()]):
            yield node, "statement", ast.Pass()


def changed(node: Any, **fields: Any) -> Any:
    """Return a copy of a node with other fields."""
    result = copy.copy(node)
    for name, value in fields.items():
        setattr(result, name, value)
    return result


def name_of(node: ast.AST) -> str:
    """Return the last name of an expression such as `log.warning`, or an empty text."""
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""


def is_text(node: ast.AST) -> bool:
    """Whether an expression is a text."""
    return isinstance(node, ast.JoinedStr) or (isinstance(node, ast.Constant) and isinstance(node.value, str))


def has_text(node: ast.AST) -> bool:
    """Whether an operation joins or fills texts, which are part of a message."""
    return any(map(is_text, ast.walk(node)))


def is_negated_elsewhere(test: ast.expr) -> bool:
    """Whether another operator has the same effect as swapping the branches of a condition."""
    match test:
        case ast.UnaryOp(op=ast.Not()):
            return True
        case ast.Compare(ops=[ast.Eq() | ast.NotEq() | ast.Is() | ast.IsNot() | ast.In() | ast.NotIn()]):
            return True
    return False


def sample(count: int, seed: int, groups: list[str]) -> list[Mutant]:
    """Return about `count` mutants, the same number of each group, in a random order."""
    chosen = []
    for group in groups:
        mutants = [
            mutant
            for path in modules_of(group)
            for mutant in mutants_of(path.relative_to(ROOT).as_posix(), path.read_text(encoding="utf-8"))
        ]
        source = random.Random(f"{seed} {group}")
        chosen += source.sample(mutants, min(len(mutants), count // len(groups)))
    random.Random(seed).shuffle(chosen)
    return chosen


def modules_of(group: str) -> list[Path]:
    """Return the modules of a group in the order of their names."""
    return sorted(path for pattern in GROUPS[group].modules for path in (ROOT / SOURCE).glob(pattern))


class Watch:
    """A plug-in of pytest that reports each test to a file and ends a test file at its first failure.

    Args:
        tree: The copy of the tree.
        wanted: The tests to run, in this order; None runs all and traces the lines that they execute.
        extra: Seconds after the first failure in which other test files may find the fault, too.
        events: Gets one line of JSON for each event.
    """

    def __init__(self, tree: Path, wanted: list[str] | None, extra: float, events: Path):
        self.wanted = wanted
        self.extra = extra
        self.out = events.open("a", buffering=1)
        self.failed: set[str] = set()
        self.end = float("inf")
        modules = [path.relative_to(ROOT) for group in GROUPS for path in modules_of(group)]
        self.modules = {str(tree / path): path.as_posix() for path in modules}
        self.traced: dict[CodeType, str | None] = {}
        self.lines: dict[str, set[int]] = defaultdict(set)

    def pytest_configure(self) -> None:
        """Let Hypothesis try the same examples each time, and not search for a smaller one."""
        import hypothesis

        phases = (hypothesis.Phase.explicit, hypothesis.Phase.generate)
        current = hypothesis.settings()
        hypothesis.settings.register_profile("mutants", current, phases=phases, derandomize=True)
        hypothesis.settings.load_profile("mutants")

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        if self.wanted is None:
            return
        place = {nodeid: number for number, nodeid in enumerate(self.wanted)}
        found = [item for item in items if item.nodeid in place]
        items[:] = sorted(found, key=lambda item: place[item.nodeid])

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Any:
        self.tell(begun=item.nodeid)
        self.lines.clear()
        start = time.monotonic()
        if self.wanted is None:
            threading.settrace(self.trace)
            sys.settrace(self.trace)
        result = yield
        if self.wanted is None:
            threading.settrace(None)
            sys.settrace(None)
        lines = {module: sorted(numbers) for module, numbers in self.lines.items()}
        self.tell(ended=item.nodeid, seconds=round(time.monotonic() - start, 3), lines=lines)
        if time.monotonic() > self.end:
            item.session.shouldstop = "The other test files have had their time."
        return result

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> None:
        if self.wanted is not None and suite_of(item.nodeid) in self.failed:
            pytest.skip("This file has found the fault.")

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self.fail(report.nodeid)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self.fail(report.nodeid)

    def fail(self, nodeid: str) -> None:
        """Note a failed test. With the first, the time for the other test files begins."""
        self.tell(failed=nodeid)
        self.failed.add(suite_of(nodeid))
        self.end = min(self.end, time.monotonic() + self.extra)

    def tell(self, **event: Any) -> None:
        self.out.write(json.dumps(event) + "\n")

    def trace(self, frame: FrameType, event: str, argument: object) -> Any:
        """Follow the lines of functions of the traced modules, as `sys.settrace` asks."""
        code = frame.f_code
        if code not in self.traced:
            self.traced[code] = self.modules.get(code.co_filename)
        return self.trace_line if self.traced[code] else None

    def trace_line(self, frame: FrameType, event: str, argument: object) -> Any:
        self.lines[self.modules[frame.f_code.co_filename]].add(frame.f_lineno)
        return self.trace_line


def suite_of(nodeid: str) -> str:
    """Return the test file of a test."""
    return nodeid.partition("::")[0]


def run_tests(
    tree: Path, suites: list[str], wanted: list[str] | None, extra: float, limit: float
) -> list[dict[str, Any]]:
    """Run tests in a forked process and return its events.

    Args:
        tree: The copy of the tree.
        suites: The test files.
        wanted: As for `Watch`.
        extra: As for `Watch`.
        limit: Seconds after which the process is killed.
    """
    events = tree.parent / "events.jsonl"
    events.unlink(missing_ok=True)
    pid = os.fork()
    if pid == 0:
        try:
            test_in_child(tree, suites, Watch(tree, wanted, extra, events))
        finally:
            os._exit(70)
    deadline = time.monotonic() + limit
    ended, status = os.waitpid(pid, os.WNOHANG)
    while not ended and time.monotonic() < deadline:
        time.sleep(PAUSE)
        ended, status = os.waitpid(pid, os.WNOHANG)
    for process in psutil.Process().children(recursive=True):  # also what the tests left behind
        process.kill()
        process.wait()
    lines = events.read_text(encoding="utf-8").splitlines() if events.exists() else []
    told = [json.loads(line) for line in lines]
    if not ended:
        told.append({"stopped": "killed after its time limit"})
    elif os.waitstatus_to_exitcode(status) not in (0, 1, 2, 5):
        told.append({"stopped": f"ended with {os.waitstatus_to_exitcode(status)}"})
    return told


def test_in_child(tree: Path, suites: list[str], watch: Watch) -> None:
    """Run pytest on the copy of the tree and end this process."""
    os.chdir(tree)
    output = os.open(tree.parent / "output.txt", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(output, 1)
    os.dup2(output, 2)
    sys.path[:0] = [str(tree / "src"), str(tree)]
    options = ["-q", "--tb=short", "-m", "not slow", "--continue-on-collection-errors"]
    options += ["-p", "no:cacheprovider", "-p", "no:xdist", f"--rootdir={tree}"]
    options += [f"--basetemp={tree.parent / 'pytest'}"]
    code = pytest.main([*options, *suites], plugins=[watch])
    sys.stdout.flush()
    os._exit(code)


def cover(tree: Path, suites: list[str], limit: float, file: Path) -> Coverage:
    """Return what each test executes.

    Args:
        tree: The copy of the tree.
        suites: The test files.
        limit: Seconds for one test file.
        file: What is known of test files that have not changed; the others run and are added.
    """
    modules = b"".join(path.read_bytes() for group in GROUPS for path in modules_of(group))
    saved = json.loads(file.read_text()) if file.is_file() else {}
    result = {}
    for suite in suites:
        digest = hashlib.sha256(modules + (ROOT / suite).read_bytes()).hexdigest()
        if saved.get(suite, {}).get("digest") != digest:
            events = run_tests(tree, [suite], None, 0, limit)
            failed = {event["failed"] for event in events if "failed" in event}
            tests = {
                event["ended"]: (event["seconds"], event["lines"])
                for event in events
                if "ended" in event and event["ended"] not in failed
            }
            stopped = [event["stopped"] for event in events if "stopped" in event]
            saved[suite] = {"digest": digest, "problems": [*sorted(failed), *stopped], "tests": tests}
            file.write_text(json.dumps(saved))
        result[suite] = {test: Executed(*executed) for test, executed in saved[suite]["tests"].items()}
        seconds = sum(executed.seconds for executed in result[suite].values())
        print(f"{suite}: {len(result[suite])} tests, {seconds:.1f} s", flush=True)
        for problem in saved[suite]["problems"]:
            print(f"  without a fault: {problem}", flush=True)
    return result


def choose(mutant: Mutant, coverage: Coverage, budget: float) -> tuple[list[str], float, bool]:
    """Return the tests to run, their seconds, and whether a test executes the changed statement.

    A statement that only an import executes belongs to all tests that execute something of the module.

    Args:
        mutant: The fault.
        coverage: What each test executes.
        budget: Seconds that the tests may take. The quickest tests are chosen.
    """
    first, last = mutant.statement
    executing = []
    covering = []
    for tests in coverage.values():
        of_module = {test: seen for test, seen in tests.items() if mutant.module in seen.lines}
        of_statement = {
            test: seen
            for test, seen in of_module.items()
            if any(first <= line <= last for line in seen.lines[mutant.module])
        }
        executing.append(of_module)
        covering.append(of_statement)
    is_covered = any(covering) and is_in_function(mutant)
    chosen: list[str] = []
    spent = 0.0
    candidates = [item for tests in (covering if is_covered else executing) for item in tests.items()]
    for test, seen in sorted(candidates, key=lambda item: item[1].seconds):
        if spent + seen.seconds > budget:
            break
        chosen.append(test)
        spent += seen.seconds
    order = list(dict.fromkeys(map(suite_of, chosen)))
    return sorted(chosen, key=lambda test: order.index(suite_of(test))), spent, is_covered


def is_in_function(mutant: Mutant) -> bool:
    """Whether a statement is inside a function. An import executes the others, perhaps within some test."""
    nodes = ast.walk(ast.parse((ROOT / mutant.module).read_text(encoding="utf-8")))
    functions = [node for node in nodes if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    return any(node.body[0].lineno <= mutant.line <= (node.end_lineno or 0) for node in functions)


def try_mutant(tree: Path, mutant: Mutant, coverage: Coverage, budget: float, extra: float) -> dict[str, Any]:
    """Run the tests on a mutant and return the mutant with what found it."""
    start = time.monotonic()
    tests, seconds, is_covered = choose(mutant, coverage, budget)
    suites = list(dict.fromkeys(map(suite_of, tests)))
    killed_by: dict[str, str] = {}
    if tests:
        original = (ROOT / mutant.module).read_bytes()
        (tree / mutant.module).write_bytes(mutant.applied_to(original))
        events = run_tests(tree, suites, tests, extra, 30 + 3 * seconds)
        (tree / mutant.module).write_bytes(original)
        current = "the start of pytest"
        for event in events:
            current = event.get("begun", current)
            if "failed" in event:
                killed_by.setdefault(suite_of(event["failed"]), event["failed"])
            if "stopped" in event:
                killed_by.setdefault(suite_of(current), f"{event['stopped']} in {current}")
    took = round(time.monotonic() - start, 1)
    found = {"killed_by": killed_by, "covered": is_covered, "tests": len(tests), "suites": suites}
    return {**asdict(mutant), **found, "seconds": took}


def table(result: dict[str, Any]) -> str:
    """Return a result as text: each group, each test file, the survivors."""
    lines = ["group       mutants  killed  survived  executed by no test or by an import"]
    for group in GROUPS:
        names = {path.relative_to(ROOT).as_posix() for path in modules_of(group)}
        own = [mutant for mutant in result["mutants"] if mutant["module"] in names]
        killed = sum(bool(mutant["killed_by"]) for mutant in own)
        idle = sum(not mutant["covered"] for mutant in own)
        lines.append(f"{group:<11} {len(own):7} {killed:7} {len(own) - killed:9} {idle:34}")
    tries = Counter(suite for mutant in result["mutants"] for suite in mutant["suites"])
    kills = Counter(suite for mutant in result["mutants"] for suite in mutant["killed_by"])
    alone: Counter[str] = Counter()
    for mutant in result["mutants"]:
        if len(mutant["killed_by"]) == 1:
            alone.update(list(mutant["killed_by"]))
    lines += ["", "seconds  tried  killed  alone  test file"]
    for suite, seconds in sorted(result["seconds"].items(), key=lambda item: -kills[item[0]]):
        lines.append(f"{seconds:7.1f} {tries[suite]:6} {kills[suite]:7} {alone[suite]:6}  {suite}")
    lines += ["", "survivors"]
    for mutant in sorted(result["mutants"], key=lambda mutant: (mutant["module"], mutant["line"])):
        if not mutant["killed_by"]:
            note = "" if mutant["covered"] else " (executed by no test, or by an import)"
            place = f"{mutant['module']}:{mutant['line']}"
            lines.append(f"{place} {mutant['kind']}: {mutant['before']} -> {mutant['after']}{note}")
    return "\n".join(lines)


def preload() -> None:
    """Import the libraries that the tests need, so that a forked process has them."""
    import hypothesis  # noqa: F401
    import jinja2  # noqa: F401
    import omegaconf  # noqa: F401
    import pandas  # noqa: F401
    import pydantic  # noqa: F401
    import scipy.stats  # noqa: F401
    import torch  # noqa: F401
    import torchvision  # noqa: F401
    import typer  # noqa: F401
    import wandb  # noqa: F401


def is_found(mutant: dict[str, Any]) -> bool:
    """Whether a test that found a mutant of an earlier result is still in the checkout."""
    for suite, test in mutant["killed_by"].items():
        function = re.search(r"::(\w+)", test)
        file = ROOT / suite
        if function and file.is_file() and f"def {function[1]}(" in file.read_text(encoding="utf-8"):
            return True
    return False


def main() -> None:
    """Make the mutants, try each, and write the result after each."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("result", type=Path, help="JSON file that is written")
    parser.add_argument("--table", action="store_true", help="only print the result as a table")
    parser.add_argument("--coverage", type=Path, help="JSON file of what each test executes, kept for later")
    parser.add_argument(
        "--again", type=Path, help="earlier result; only what no test finds any more is tried"
    )
    parser.add_argument("--count", type=int, default=300, help="number of mutants")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--groups", nargs="+", choices=GROUPS, default=list(GROUPS))
    parser.add_argument("--minutes", type=float, default=60, help="no mutant begins after this time")
    parser.add_argument("--budget", type=float, default=40, help="seconds of tests for each mutant")
    parser.add_argument("--extra", type=float, default=8, help="seconds for other files after the first kill")
    arguments = parser.parse_args()
    if arguments.table:
        print(table(json.loads(arguments.result.read_text())))
        return
    end = time.monotonic() + 60 * arguments.minutes
    sys.path.pop(0)  # the folder of this script, which has names such as `training`
    # A mutant can have the size and the second of the one before it, so that Python would take the old file.
    os.environ["PYTHONDONTWRITEBYTECODE"] = "1"
    sys.dont_write_bytecode = True
    preload()
    ctypes.CDLL(None).prctl(SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    patterns = [pattern for group in arguments.groups for pattern in GROUPS[group].suites]
    paths = {path for pattern in patterns for path in (ROOT / "tests").glob(pattern)}
    suites = sorted(path.relative_to(ROOT).as_posix() for path in paths)
    with tempfile.TemporaryDirectory() as folder:
        tree = Path(folder) / "tree"
        shutil.copytree(ROOT, tree, ignore=shutil.ignore_patterns(*LEFT_OUT))
        coverage = cover(tree, suites, 600, arguments.coverage or Path(folder) / "coverage.json")
        seconds = {suite: sum(seen.seconds for seen in tests.values()) for suite, tests in coverage.items()}
        mutants = sample(arguments.count, arguments.seed, arguments.groups)
        kept: list[dict[str, Any]] = []
        if arguments.again:
            earlier = json.loads(arguments.again.read_text())["mutants"]
            kept = [mutant for mutant in earlier if is_found(mutant)]
            names = [field.name for field in fields(Mutant)]
            mutants = [Mutant(**{name: m[name] for name in names}) for m in earlier if not is_found(m)]
        result: dict[str, Any] = {"seed": arguments.seed, "seconds": seconds, "mutants": kept}
        for mutant in mutants:
            if time.monotonic() > end:
                break
            kept.append(try_mutant(tree, mutant, coverage, arguments.budget, arguments.extra))
            arguments.result.write_text(json.dumps(result, indent=1))
    print(table(result))


if __name__ == "__main__":
    main()
