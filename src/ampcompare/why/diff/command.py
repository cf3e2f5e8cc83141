"""What `ampcompare why diff` does: the steps taken and compared, the answer printed, drawn, written."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from ampcompare.config.load import Config
from ampcompare.data.batch import Batch, count_samples, tensors
from ampcompare.machine.environment import describe_environment
from ampcompare.precision import backend_of
from ampcompare.train.step import Trainer
from ampcompare.why.diff.alone import Own
from ampcompare.why.diff.answer import CHANCE, Difference
from ampcompare.why.diff.built import FP32, Bench, set_up
from ampcompare.why.diff.calls import Recorder
from ampcompare.why.diff.compare import lines_of, own_of_all, side_of
from ampcompare.why.diff.drift import Drift, course, drift
from ampcompare.why.diff.look import Look, in_double, look_at
from ampcompare.why.ready import configured

# Of the environment, as what may change a figure.
RECORDED = ("device_type", "device_name", "cpu_threads", "torch", "cuda", "cudnn")


def difference(words: Sequence[str], against: str = FP32, steps: int = 1) -> Difference:
    """Take the steps and compare them. Raises UserError for what cannot be had."""
    config = configured(words)
    other = configured(words, backend=against)
    cudnn = torch.backends.cudnn
    was = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
    before = cudnn.benchmark, cudnn.deterministic
    rng = torch.get_rng_state()
    try:
        with warnings.catch_warnings():
            # What a module may not do in a run, a run says.
            warnings.simplefilter("ignore", UserWarning)
            return _difference(words, config, other, steps)
    finally:
        torch.use_deterministic_algorithms(was[0], warn_only=was[1])
        cudnn.benchmark, cudnn.deterministic = before
        torch.set_rng_state(rng)


def _difference(words: Sequence[str], config: Config, other: Config, steps: int) -> Difference:
    bench = set_up(words, config)
    fp32 = configured(words, backend=FP32)
    configs = {backend_of(config.backend).label: config}
    if other.backend != config.backend:  # else there is one side
        label = backend_of(other.backend).label
        configs[other.backend if label in configs else label] = other
    batches = bench.steps(steps)
    truth, reference = _truth(bench, fp32, batches[0])
    sides, found = [], []
    for label, c in configs.items():
        look, own = _look(bench, c, label, batches[0], truth, reference)
        sides.append(side_of(truth, look))
        found.append((look, own))
    called = {name for name, _ in truth.calls}
    environment = describe_environment(bench.device)
    drifts, skipped = _drifts(bench, configs, fp32, batches, steps) if steps > 1 else ({}, {})
    return Difference(
        config.model.name,
        config.data.source,
        config.seed,
        sum(count_samples(inputs) for inputs, _ in batches[0]),
        steps,
        {label: backend_of(c.backend).dtype for label, c in configs.items()},
        truth.loss,
        sides,
        lines_of(truth, found),
        [name for name in truth.modules if name not in called],
        drifts,
        skipped,
        {key: environment[key] for key in RECORDED},
    )


def _truth(bench: Bench, fp32: Config, batches: Any) -> tuple[Look, Trainer]:
    """The step in fp64, and a trainer with the weights that it was taken with."""
    trainer = in_double(bench.trainer(fp32))
    look = look_at(trainer, "fp64", batches, fp32.seed, double=True)
    return look, in_double(bench.trainer(fp32))


def _look(
    bench: Bench, config: Config, label: str, batches: Any, truth: Look, reference: Trainer
) -> tuple[Look, dict[tuple[str, int], Own]]:
    own: dict[tuple[str, int], Own] = {}

    def before_step(trainer: Trainer, recorder: Recorder) -> None:
        own.update(own_of_all(truth, reference, trainer, recorder, config.seed))

    trainer = bench.trainer(config)
    return look_at(trainer, label, batches, config.seed, before_step=before_step), own


def _drifts(
    bench: Bench, configs: dict[str, Config], fp32: Config, batches: Any, steps: int
) -> tuple[dict[tuple[str, str], Drift], dict[str, int]]:
    """How each backend parts from fp64 and from the other, and what another order does to the last one."""
    truth = course(bench.trainer(fp32), batches, fp32.seed, double=True)
    courses = {label: course(bench.trainer(c), batches, c.seed) for label, c in configs.items()}
    labels = list(courses)
    found = {(label, "fp64"): drift(one, truth) for label, one in courses.items()}
    first, base = labels[0], labels[-1]
    if first != base:
        found[first, base] = drift(courses[first], courses[base])
    seed = configs[base].seed + 1
    others = bench.steps(steps, seed)
    if not _are_same(batches, others):
        shuffled = course(bench.trainer(configs[base]), others, seed)
        found[base, CHANCE] = drift(shuffled, courses[base])
    return found, {label: one.skipped for label, one in courses.items()}


def _are_same(one: Sequence[Sequence[Batch]], other: Sequence[Sequence[Batch]]) -> bool:
    """Whether the steps have the same samples in the same order. Waits for the device."""
    pairs = zip(chain(*one), chain(*other), strict=True)
    return all(
        a.shape == b.shape and bool((a == b).all())
        for ours, theirs in pairs
        for mine, its in zip(ours, theirs, strict=True)
        for a, b in zip(tensors(mine), tensors(its), strict=True)
    )


def run_diff(
    words: Sequence[str],
    console: Console,
    *,
    against: str = FP32,
    steps: int = 1,
    every: bool = False,
    plot: Path | None = None,
    json: Path | None = None,
) -> None:
    """Compare, print, and write what was asked for. Raises UserError."""
    from ampcompare.why.diff.as_json import write_json
    from ampcompare.why.diff.table import print_difference

    if plot is not None:
        from ampcompare.why.diff.picture import check_kind

        check_kind(plot)
    found = difference(words, against, steps)
    print_difference(found, console, every=every)
    if plot is not None:
        from ampcompare.why.diff.picture import write_picture

        write_picture(found, plot)
        console.print(f"picture: {plot}", markup=False, highlight=False, soft_wrap=True)
    if json is not None:
        write_json(found, json)
        console.print(f"JSON: {json}", markup=False, highlight=False, soft_wrap=True)
