"""The faults that `support/mutants.py` plants are valid programs, and the same for the same seed."""

import ast
import textwrap

from support.mutants import GROUPS, ROOT, mutants_of, sample

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
