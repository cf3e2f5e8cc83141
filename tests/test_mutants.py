"""The faults that `support/mutants.py` plants are valid programs, and the same for the same seed."""

import ast
import textwrap
from dataclasses import asdict

from support.mutants import GROUPS, ROOT, Executed, choose, mutants_of, sample, table

MODULE = '''
    """A docstring with 1 number, and not one fault."""
    LIMIT: Literal[7] = 3  # a comment: 3 < 4


    @cache(maxsize=5)
    def first(values, strict=False):
        """Return 1."""
        if not values and strict:
            raise UserError(f"{len(values) + 1} values" + "not enough")
        log.warning("%d left", len(values) - 1)
        values.pop()
        for value in values:
            if value <= -2.5 or value in SKIPPED:
                continue
            state.last = value
        text = "of " + name + "s"
        return values[0] * 2
'''

EXPECTED = [
    (3, "3", "(4)"),
    (3, "3", "(2)"),
    (7, "False", "(True)"),
    (9, "not values and strict", "(not values or strict)"),
    (9, "not values and strict", "(not (not values and strict))"),
    (9, "not values", "(values)"),
    (10, 'raise UserError(f"{len(values) + 1} values" + "not enough")', "pass"),
    (12, "values.pop()", "pass"),
    (14, "value <= -2.5 or value in SKIPPED", "(value <= -2.5 and value in SKIPPED)"),
    (14, "value <= -2.5 or value in SKIPPED", "(not (value <= -2.5 or value in SKIPPED))"),
    (14, "value <= -2.5", "(value < -2.5)"),
    (14, "-2.5", "(2.5)"),
    (14, "2.5", "(3.5)"),
    (14, "2.5", "(1.5)"),
    (14, "value in SKIPPED", "(value not in SKIPPED)"),
    (15, "continue", "pass"),
    (16, "state.last = value", "pass"),
    (18, "return values[0] * 2", "return None"),
    (18, "values[0] * 2", "(values[0] / 2)"),
    (18, "0", "(1)"),
    (18, "0", "(-1)"),
    (18, "2", "(3)"),
    (18, "2", "(1)"),
]


def test_mutants_of_a_module_are_these_and_none_in_text_messages_annotations_and_decorators():
    text = textwrap.dedent(MODULE)
    found = [(mutant.line, mutant.before, mutant.after) for mutant in mutants_of("module.py", text)]
    assert sorted(found) == sorted(EXPECTED)


def test_each_mutant_is_a_valid_module_that_differs_from_the_original():
    for mutant in sample(60, 0, list(GROUPS)):
        original = (ROOT / mutant.module).read_bytes()
        changed = mutant.applied_to(original)
        assert ast.dump(ast.parse(changed)) != ast.dump(ast.parse(original)), mutant
        assert mutant.statement[0] <= mutant.line


def test_the_same_seed_gives_the_same_mutants():
    groups = ["statistics", "checkpoint"]
    assert sample(20, 3, groups) == sample(20, 3, groups)
    assert sample(20, 3, groups) != sample(20, 4, groups)
    assert len(sample(20, 3, groups)) == 20


def test_the_quickest_tests_that_execute_the_statement_are_chosen_file_by_file():
    module = "src/ampcompare/training/checkpoint/manager.py"
    (line,) = (
        n for n, text in enumerate((ROOT / module).read_text().splitlines(), 1) if "epochs % every" in text
    )
    mutant = next(m for m in mutants_of(module, (ROOT / module).read_text()) if m.line == line)
    here, elsewhere = {module: [line]}, {module: [line + 100]}
    coverage = {
        "a.py": {"a.py::slow": Executed(9.0, here), "a.py::quick": Executed(2.0, here)},
        "b.py": {"b.py::other": Executed(0.1, elsewhere), "b.py::quick": Executed(1.0, here)},
        "c.py": {"c.py::none": Executed(0.1, {}), "c.py::first": Executed(0.5, here)},
    }
    assert choose(mutant, coverage, 5.0) == (["c.py::first", "b.py::quick", "a.py::quick"], 3.5, True)
    coverage["b.py"]["b.py::last"] = Executed(2.5, here)
    chosen, spent, _ = choose(mutant, coverage, 7.0)
    assert (chosen, spent) == (["c.py::first", "b.py::quick", "b.py::last", "a.py::quick"], 6.0)


def test_a_result_is_shown_with_what_survived_and_what_each_test_file_found():
    chosen = sample(4, 0, ["checkpoint"])
    found = [{"a.py": "a.py::test"}, {"a.py": "a.py::test", "b.py": "b.py::test"}, {"b.py": "b.py::test"}, {}]
    mutants = [
        {**asdict(mutant), "killed_by": killed_by, "covered": True, "suites": ["a.py", "b.py"]}
        for mutant, killed_by in zip(chosen, found, strict=True)
    ]
    lines = table({"seconds": {"a.py": 1.0, "b.py": 2.0}, "mutants": mutants}).splitlines()
    assert "checkpoint".ljust(11) + "       4       3         1" in lines[4]
    assert [line.split() for line in lines if line.endswith(".py")] == [
        ["1.0", "4", "2", "1", "a.py"],
        ["2.0", "4", "2", "1", "b.py"],
    ]
    assert lines[-1].startswith(f"{chosen[3].module}:{chosen[3].line} {chosen[3].kind}: ")
