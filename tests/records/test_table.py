from __future__ import annotations

import json
import math

import numpy as np
import pandas as pd
from ampcompare.records.table import Table

from ampcompare.records.run import as_numbers
from ampcompare.wandb_client.protocol import Record


def table_of(*rows: dict) -> Table:
    table = Table()
    for row in rows:
        history = Record().history
        for name, value in row.items():
            item = history.item.add(value_json=value if isinstance(value, str) else json.dumps(value))
            item.nested_key.extend(name.split("|"))
        table.add_row(history.item)
    return table


def test_a_value_that_was_not_logged_and_a_logged_nan_are_told_apart():
    table = table_of({"a": 1.0}, {"b": 2.0}, {"a": math.nan}, {"a": '"NaN"', "b": None})
    arrays = table.arrays()
    np.testing.assert_array_equal(arrays["a"], [1.0, np.nan, np.nan, np.nan])
    np.testing.assert_array_equal(arrays["b"], [np.nan, 2.0, np.nan, np.nan])
    assert {name: list(rows) for name, rows in table.nan_rows().items()} == {"a": [2, 3]}


def test_infinities_are_numbers():
    arrays = table_of({"a": math.inf}, {"a": '"-Infinity"'}).arrays()
    np.testing.assert_array_equal(arrays["a"], [np.inf, -np.inf])


def test_column_with_texts_keeps_the_numbers_before_and_after():
    column = table_of({"a": 1.5}, {}, {"a": '"x"'}, {"a": 2}, {"a": True}).arrays()["a"]
    assert list(column) == [1.5, None, "x", 2.0, True]


def test_lists_and_nested_names():
    arrays = table_of({"h": [1, 2], "a|b": 3}).arrays()
    assert list(arrays["h"]) == [[1, 2]]
    assert list(arrays["a.b"]) == [3.0]


def test_key_that_comes_twice_in_a_row_counts_once():
    table = Table()
    history = Record().history
    for value in ("1", "2"):
        history.item.add(value_json=value).nested_key.append("a")
    table.add_row(history.item)
    assert list(table.arrays()["a"]) == [2.0]


def test_value_that_is_no_json_is_counted_and_leaves_the_rest():
    table = table_of({"a": "{", "b": 1}, {"a": 2})
    np.testing.assert_array_equal(table.arrays()["a"], [np.nan, 2.0])
    assert table.bad_values == 1


def test_a_whole_number_that_no_float_holds_is_none_beside_others():
    column = pd.Series([1, 10**400, "x", 2.5, None], dtype=object)
    np.testing.assert_array_equal(as_numbers(column), [1, np.nan, np.nan, 2.5, np.nan])
