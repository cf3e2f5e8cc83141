"""What the demo trains: in which half type, for how many steps, and how long that takes. Free of torch.

ResNet50 and the batch size stay; what a machine decides is the type and the number of steps. Both are taken
from measured rates in coarse rungs, so that one machine comes to the same choice each time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

BACKENDS = {"float16": ("none", "native", "apex_o1"), "bfloat16": ("none", "native_bf16", "apex_o1_bf16")}
SHORT = {"float32": "fp32", "float16": "fp16", "bfloat16": "bf16"}

# fp16 is trained where it reaches this share of fp32's rate: loss scaling is then to be seen.
LEAST_SHARE = 0.1
# Below this share of fp32's rate in one convolution no step of the network is tried: on an Intel Xeon with
# AMX (0.003) it would take 15 s. Where fp16 is only slow the network reaches up to twice a convolution's
# share (AVX2: 0.08 and 0.15), as the rest of a step is the same in both.
HOPELESS = 0.03

EPOCHS = 4
# Steps an epoch. The lowest rung shows a learning curve; above the highest nothing new is seen.
RUNGS = (6, 8, 12, 16, 24, 32, 48, 64)
ROWS_AN_EPOCH = 6  # at most
# Seconds. The whole is to stay within 240 on an idle machine: 100 for all steps leave room for what else a
# run takes and for a machine that turns out half as fast as it was measured.
FOR_STEPS = 100.0
START = 7.0  # of a run: PyTorch and W&B begin and end, the network is made
EVALUATION = 10.0  # of 200 images, in training steps in fp32: 25 batches of forward alone
PAGE = 15.0  # the report with its pictures


@dataclass(frozen=True)
class Costs:
    """What was measured: the device's name, GFLOP/s of a convolution by type, seconds of a step by type, and
    the rate of steps in a type as a share of fp32's, on one core.

    A step is one of the demo's network; a type that was not tried has none. `shares` are of one core because
    beside other work several wait for each other, which says more of that work than of the types.
    """

    device: str
    rates: Mapping[str, float]
    seconds: Mapping[str, float]
    shares: Mapping[str, float] = field(default_factory=dict)

    def share(self, dtype: str) -> float:
        """The rate in a type as a share of fp32's: of steps where these were timed, else of convolutions."""
        if dtype in self.shares:
            return self.shares[dtype]
        base = self.rates.get("float32", 0.0)
        return self.rates.get(dtype, 0.0) / base if base else 0.0


@dataclass(frozen=True)
class Part:
    """One thing that the demo does: its name for the user and how many seconds it is thought to take."""

    name: str
    seconds: float


def is_worth_a_try(costs: Costs, dtype: str) -> bool:
    """Whether steps in this type may be timed at all."""
    return costs.share(dtype) >= HOPELESS


def choose_type(costs: Costs) -> str:
    """float16 where it trains at a tenth of fp32's rate or better, else bfloat16.

    >>> choose_type(Costs("GPU", {"float32": 1.0, "float16": 4.0}, {}))
    'float16'
    >>> choose_type(Costs("Xeon", {"float32": 150.0, "float16": 0.8, "bfloat16": 300.0}, {}))
    'bfloat16'
    """
    return "float16" if costs.share("float16") >= LEAST_SHARE else "bfloat16"


def choose_rung(seconds_a_round: float) -> int:
    """Steps an epoch: the highest rung whose steps fit, `seconds_a_round` for one under each backend.

    >>> choose_rung(0.4), choose_rung(1.9), choose_rung(60.0)
    (48, 12, 6)
    """
    fitting = [rung for rung in RUNGS if EPOCHS * rung * seconds_a_round <= FOR_STEPS]
    return max(fitting, default=RUNGS[0])


def words_of(rung: int, images_a_step: int) -> list[str]:
    """The options of every run that go by the number of steps an epoch.

    The scale grows once an epoch, so that it is seen to, and an image is seen once in each.
    """
    return [
        f"epochs={EPOCHS}",
        f"data.train_limit={rung * images_a_step}",
        f"precision.growth_interval={rung}",
        f"log.every={-(-rung // ROWS_AN_EPOCH)}",
        f"diagnostics.every={max(1, rung // 2)}",
    ]


def why_type(costs: Costs, dtype: str) -> str:
    """Why this type was taken, in a line.

    >>> why_type(Costs("Xeon", {"float32": 150.0, "float16": 0.75}, {}), "bfloat16")
    'mixed precision in bf16: fp16 trains at 0.5 % of the rate of fp32 here, and less than 10 % is too slow'
    """
    shares = min(costs.share("float16"), 1.0), LEAST_SHARE
    reached, least = (f"{share * 100:.2g} %" for share in shares)
    if dtype == "float16":
        return f"mixed precision in fp16: at {reached} of fp32's rate here, {least} are enough"
    return (
        f"mixed precision in bf16: fp16 trains at {reached} of the rate of fp32 here, and less than {least} "
        "is too slow"
    )


def parts(order: Sequence[str], dtype: str, costs: Costs, steps: int, evaluations: int) -> list[Part]:
    """The runs in their order, then the page, each with what it will take."""
    found = []
    for backend in order:
        kind = "float32" if backend == "none" else dtype
        seconds = START + steps * costs.seconds[kind] + evaluations * EVALUATION * costs.seconds["float32"]
        found.append(Part(backend, seconds))
    return [*found, Part("the page", PAGE)]


def seconds_left(expected: Sequence[Part], taken: Sequence[float], skip: int = 0) -> float:
    """Of the parts behind those that are done and `skip` more, at the pace of those that are done.

    >>> seconds_left([Part("a", 10), Part("b", 20), Part("page", 5)], [15.0])
    37.5
    """
    left = sum(part.seconds for part in expected[len(taken) + skip :])
    thought = sum(part.seconds for part in expected[: len(taken)])
    return left * (sum(taken) / thought if thought else 1.0)


def about(seconds: float) -> str:
    """Seconds as one says them.

    >>> about(7.0), about(38.0), about(150.0), about(601.0)
    ('10 s', '40 s', '2 min 30 s', '10 min')
    """
    tens = max(10, round(seconds / 10) * 10)
    minutes, rest = divmod(tens, 60)
    if not minutes:
        return f"{rest} s"
    return f"{minutes} min {rest} s" if rest and minutes < 10 else f"{minutes} min"
