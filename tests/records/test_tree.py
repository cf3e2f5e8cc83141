from __future__ import annotations

import json
import math

from hypothesis import example, given
from hypothesis import strategies as st

from ampcompare.records.tree import Tree, as_text, flatten, lookup, plain
from ampcompare.wandb_client.protocol import Record

PATHS = st.lists(st.sampled_from("abc"), min_size=1, max_size=3)
VALUES = st.one_of(st.integers(0, 9), st.dictionaries(st.sampled_from("abc"), st.integers(0, 9), max_size=2))
KEYS = st.none() | st.integers() | st.floats() | st.text(max_size=2)


def odd(inner):
    """Lists and groups of values, under keys of any type."""
    return st.lists(inner, max_size=2) | st.dictionaries(KEYS, inner, max_size=2)


WRITES = st.lists(st.tuples(PATHS, st.one_of(st.none(), VALUES)), max_size=12)


def tree_of(writes) -> Tree:
    tree = Tree()
    for path, value in writes:
        summary = Record().summary
        item = (summary.remove if value is None else summary.update).add()
        if len(path) == 1:
            item.key = path[0]
        else:
            item.nested_key.extend(path)
        item.value_json = "" if value is None else value if isinstance(value, str) else json.dumps(value)
        tree.apply(summary)
    return tree


def applied_one_by_one(writes) -> dict:
    root: dict = {}
    for path, value in writes:
        node = root
        for part in path[:-1]:
            if not isinstance(node.get(part), dict):
                if value is None:
                    break
                node[part] = {}
            node = node[part]
        else:
            if value is None:
                node.pop(path[-1], None)
            else:
                node[path[-1]] = dict(value) if isinstance(value, dict) else value
    return root


@given(WRITES)
@example([(["a"], 0), (["a", "a"], 0), (["a", "a"], None)])
@example([(["a"], 0), (["a", "a", "a"], 0), (["a", "a"], None)])
@example([(["a"], {"a": 0}), (["a", "a", "a"], 0), (["a", "a", "a"], None)])
def test_last_writes_alone_give_the_tree_that_all_writes_give(writes):
    assert _without_empty(tree_of(writes).build()) == _without_empty(applied_one_by_one(writes))


def _without_empty(tree: dict) -> dict:
    # A group whose members were all removed may stay as an empty dictionary in one and not in the other.
    inner = {k: _without_empty(v) if isinstance(v, dict) else v for k, v in tree.items()}
    return {k: v for k, v in inner.items() if v != {}}


def test_texts_for_nan_and_infinity_become_floats():
    tree = tree_of([(["a"], '"NaN"'), (["b"], '{"c": ["Infinity", "-Infinity"]}'), (["d"], "NaN")]).build()
    assert math.isnan(tree["a"])
    assert tree["b"] == {"c": [math.inf, -math.inf]}
    assert math.isnan(tree["d"])


def test_what_is_no_json_is_counted_and_left_out():
    tree = tree_of([(["a"], "{"), (["b"], "[" * 100_000), (["c"], "1")])
    assert tree.build() == {"c": 1}
    assert tree.bad_values == 2


def test_wandbs_own_key_is_left_out():
    assert tree_of([(["_wandb", "runtime"], "3"), (["a"], "1")]).build() == {"a": 1}


def test_lookup_finds_nested_and_flat_keys():
    tree = {"optimizer": {"lr": 0.1}, "schedule.name": "cosine"}
    assert lookup(tree, "optimizer.lr") == 0.1
    assert lookup(tree, "schedule.name") == "cosine"
    assert lookup(tree, "optimizer.momentum", 0.9) == 0.9
    assert lookup({"optimizer": 3}, "optimizer.lr") is None


def test_flatten_keeps_empty_groups_visible():
    assert dict(flatten({"a": {"b": 1, "c": {}}, "d": [1]})) == {"a.b": 1, "a.c": {}, "d": [1]}


def test_groups_nested_without_end_are_skipped_and_counted():
    tree = tree_of([(["a"] * 5_000, 1), (["b"], 2)])
    assert tree.build() == {"b": 2}
    assert tree.bad_values == 1


def test_plain_values_stay_themselves():
    tree = {"a": {"b": [1, 2.5, None, True, "x"]}, "c": {}}
    assert plain(tree) is tree


@given(
    st.recursive(st.none() | st.binary(max_size=2) | st.integers() | st.floats() | st.tuples(st.text()), odd)
)
def test_any_value_comes_out_as_json_has_it(value):
    json.dumps(plain({"a": value}))


def test_what_python_cannot_write_becomes_a_text():
    deep: dict = {}
    for _ in range(5000):
        deep = {"a": deep}
    assert isinstance(plain({"a": 10**5000})["a"], str)
    assert plain({"a": 10**4000}) == {"a": 10**4000}
    found = dict(flatten(plain(deep)))
    (value,) = found.values()
    assert isinstance(value, str)
    assert as_text(10**5000) == "int that cannot be written"
