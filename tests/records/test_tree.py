from __future__ import annotations

import json

from hypothesis import given
from hypothesis import strategies as st

from ampcompare.records.tree import as_text, flatten, lookup, plain

KEYS = st.none() | st.integers() | st.floats() | st.text(max_size=2)


def odd(inner):
    """Lists and groups of values, under keys of any type."""
    return st.lists(inner, max_size=2) | st.dictionaries(KEYS, inner, max_size=2)


def test_lookup_finds_nested_and_flat_keys():
    tree = {"optimizer": {"lr": 0.1}, "schedule.name": "cosine"}
    assert lookup(tree, "optimizer.lr") == 0.1
    assert lookup(tree, "schedule.name") == "cosine"
    assert lookup(tree, "optimizer.momentum", 0.9) == 0.9
    assert lookup({"optimizer": 3}, "optimizer.lr") is None


def test_flatten_keeps_empty_groups_visible():
    assert dict(flatten({"a": {"b": 1, "c": {}}, "d": [1]})) == {"a.b": 1, "a.c": {}, "d": [1]}


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
