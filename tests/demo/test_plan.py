"""What the demo chooses from measured rates, and what it says of time."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ampcompare.config.arguments import parse
from ampcompare.demo import plan
from ampcompare.demo.plan import Costs, Part

BATCH = parse(["--config", "demo"]).batch_size
# Rates and seconds of a step: an Intel Xeon with AMX, the same capped to AVX-512 and to AVX2 (two cores).
AMX = Costs(
    "Xeon", {"float32": 150.0, "float16": 0.8, "bfloat16": 300.0}, {"float32": 0.13, "bfloat16": 0.12}
)
AVX512 = Costs(
    "Xeon", {"float32": 30.0, "float16": 2.9}, {"float32": 0.13, "float16": 0.9}, {"float16": 0.14}
)
AVX2 = Costs("EPYC", {"float32": 20.0, "float16": 1.7}, {"float32": 0.13, "float16": 0.85}, {"float16": 0.15})


@pytest.mark.parametrize(
    ("share", "dtype"), [(0.005, "bfloat16"), (0.0999, "bfloat16"), (0.1, "float16"), (4.0, "float16")]
)
def test_fp16_is_trained_from_a_tenth_of_the_rate_of_fp32_on(share: float, dtype: str):
    assert plan.choose_type(Costs("any", {"float32": 1.0}, {}, {"float16": share})) == dtype


def test_steps_of_the_network_count_more_than_convolutions():
    assert plan.choose_type(AVX2) == "float16"
    assert AVX2.rates["float16"] / AVX2.rates["float32"] < plan.LEAST_SHARE


def test_a_hopeless_type_is_not_even_tried():
    assert not plan.is_worth_a_try(AMX, "float16")
    assert plan.choose_type(AMX) == "bfloat16"
    assert plan.is_worth_a_try(AVX2, "float16")


def test_a_type_that_does_not_run_is_not_taken():
    assert plan.choose_type(Costs("any", {"float32": 5.0}, {"float32": 1.0})) == "bfloat16"


@pytest.mark.parametrize(("costs", "dtype"), [(AMX, "bfloat16"), (AVX512, "float16"), (AVX2, "float16")])
def test_known_processors_stay_within_four_minutes(costs: Costs, dtype: str):
    rung = plan.choose_rung(costs.seconds["float32"] + 2 * costs.seconds[dtype])
    whole = plan.parts(plan.BACKENDS[dtype], dtype, costs, plan.EPOCHS * rung, plan.EPOCHS)
    assert plan.EPOCHS * rung >= 40
    assert sum(part.seconds for part in whole) + 20 <= 240


@given(st.floats(1e-4, 1e4), st.floats(1e-4, 1e4))
def test_a_slower_machine_takes_no_more_steps(one: float, other: float):
    fast, slow = sorted((one, other))
    assert plan.choose_rung(fast) >= plan.choose_rung(slow)


@given(st.floats(1e-4, 1e4))
def test_as_many_steps_are_taken_as_fit(seconds: float):
    rung = plan.choose_rung(seconds)
    if rung > plan.RUNGS[0]:
        assert plan.EPOCHS * rung * seconds <= plan.FOR_STEPS
    if rung < plan.RUNGS[-1]:
        assert plan.EPOCHS * plan.RUNGS[plan.RUNGS.index(rung) + 1] * seconds > plan.FOR_STEPS


@pytest.mark.parametrize("rung", plan.RUNGS)
def test_the_options_of_a_rung_give_that_many_steps_and_a_scale_that_grows(rung: int):
    config = parse(["--config", "demo", *plan.words_of(rung, BATCH)])
    assert config.data.train_limit == rung * config.batch_size
    assert config.epochs * rung > config.precision.growth_interval + config.log.every
    assert 1 <= rung / config.log.every <= plan.ROWS_AN_EPOCH


def test_what_is_left_goes_by_the_pace_so_far():
    expected = [Part("a", 10.0), Part("b", 30.0), Part("the page", 10.0)]
    assert plan.seconds_left(expected, []) == 50.0
    assert plan.seconds_left(expected, [20.0]) == 80.0
    assert plan.seconds_left(expected, [20.0], skip=1) == 20.0
    assert plan.seconds_left(expected, [5.0, 15.0]) == 5.0


def test_the_line_on_the_type_names_rate_and_limit():
    assert "fp16 trains at 0.53 % of the rate of fp32" in plan.why_type(AMX, "bfloat16")
    assert "less than 10 % is too slow" in plan.why_type(AMX, "bfloat16")
    assert "in fp16: at 15 % of fp32's rate here, 10 % are enough" in plan.why_type(AVX2, "float16")
