"""The order of runs: in blocks, drawn within each, the same for whoever asks."""

from itertools import islice

from ampcompare.sweeps.sweep import orders


def test_a_block_has_each_value_once_in_an_order_that_was_drawn_once_for_good():
    """A sweep that goes on after an update has to find its runs where they were."""
    assert [tuple(order) for order in islice(orders("compare_backends", 3), 4)] == [
        (0, 1, 2),
        (2, 0, 1),
        (0, 2, 1),
        (1, 0, 2),
    ]
    for name, values in (("näme", 4), ("", 1), ("x" * 300, 9)):
        drawn = [tuple(order) for order in islice(orders(name, values), 40)]
        assert {tuple(sorted(order)) for order in drawn} == {tuple(range(values))}
        assert len({*drawn}) > 10 or values == 1
