"""What a card's data sheet lets one expect of an arm's speed-up there, whoever measured it.

A step is bounded by arithmetic, by memory, or by neither (launches, the host): the roofline of Williams,
Waterman and Patterson (2009), of which the two roofs are known without the network.
"""

from __future__ import annotations

from ampcompare.precision.backends import REGISTRY
from ampcompare.published.devices import Device, devices
from ampcompare.published.publication import Publication
from ampcompare.report import words
from ampcompare.report.runs.hardware import is_same_card

TF32 = "tf32"
BYTES = {"float32": 4, TF32: 4, "float16": 2, "bfloat16": 2}
SHOWN = {"float32": "fp32", TF32: "TF32", "float16": "fp16", "bfloat16": "bf16"}


def expected(publication: Publication, arm: str) -> str:
    """In words, the speed-up over the baseline that the published card allows where arithmetic bounds a step
    and where memory does; empty where the table has no such card, or no figure of a type for it.
    """
    there = [card for card in devices() if is_same_card(publication.hardware, [card.name])]
    if len(there) != 1:
        return ""
    (card,) = there
    own, base = (_type_of(publication, name, card) for name in (arm, publication.baseline))
    if own not in card.flop_per_second or base not in card.flop_per_second:
        return ""
    rates = [card.flop_per_second[name] for name in (own, base)]
    told = " against ".join(f"{words.number(rate / 1e12)}" for rate in rates)
    memory = BYTES[base] / BYTES[own]
    return (
        f"the roofline of {card.name} ({SHOWN[own]} beside {SHOWN[base]}, by its data sheet) allows "
        f"{words.ratio(rates[0] / rates[1])} where arithmetic bounds a step ({told} TFLOP/s), "
        f"{words.ratio(memory)} where memory does"
    )


def _type_of(publication: Publication, arm: str, card: Device) -> str:
    """In which type an arm's convolutions and matrix products compute there."""
    options = {**publication.setting, **publication.arms[arm]}
    backend = REGISTRY.get(str(options.get("backend", "none")))
    if backend is None or backend.is_fp32:
        return TF32 if options.get("tf32") and TF32 in card.flop_per_second else "float32"
    return backend.dtype
