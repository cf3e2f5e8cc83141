"""The order of runs: in blocks, drawn within each, the same for whoever asks."""

from itertools import islice
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from ampcompare.sweeps.distributions import Parameter
from ampcompare.sweeps.sweep import orders
from ampcompare.sweeps.sweep_file import Hyperband, Sweep

NAMES = st.text(max_size=20)


def sweep(**values) -> Sweep:
    """Return a grid with lists of values, named after its keys."""
    parameters = [Parameter((key,), "categorical", {"values": list(v)}) for key, v in values.items()]
    return Sweep(Path("s.yaml"), "mine", "grid", tuple(parameters))


def points(of: Sweep) -> list[tuple]:
    return [tuple(point.parameters.values()) for point in of.points]


def drawn(name: str, values: int, blocks: int) -> list[tuple[int, ...]]:
    """Return the orders of the first blocks."""
    return [tuple(order) for order in islice(orders(name, values), blocks)]


@given(NAMES, st.integers(1, 9), st.integers(0, 8))
def test_a_block_has_each_value_once(name, values, block):
    assert sorted(drawn(name, values, block + 1)[block]) == list(range(values))


def test_order_that_was_drawn_once_stays_that_for_good():
    """A sweep that goes on after an update has to find its runs where they were."""
    assert drawn("compare_backends", 3, 4) == [(0, 1, 2), (2, 0, 1), (0, 2, 1), (1, 0, 2)]
    assert len({*drawn("näme", 4, 40)}) > 10


def test_seeds_are_outermost_and_a_block_has_every_backend_at_one_setting():
    of = sweep(lr=[0.1, 0.2], seed=[5, 6], backend=["none", "native", "fp16"])
    found = points(of)
    assert [seed for _, seed, _ in found] == [5] * 6 + [6] * 6
    for begin in range(0, 12, 3):
        block = found[begin : begin + 3]
        assert len({(lr, seed) for lr, seed, _ in block}) == 1
        assert {backend for *_, backend in block} == {"none", "native", "fp16"}
    assert len(set(found)) == 12


def test_hyperband_keeps_the_order_of_the_file():
    of = sweep(x=[5, 1], y=[1, 2])
    early = Sweep(of.path, "mine", "grid", of.parameters, hyperband=Hyperband(type="hyperband", min_iter=3))
    assert points(early) == [(5, 1), (1, 1), (5, 2), (1, 2)]
