"""`ampcompare bench recipe`: every backend in turn, beside the published figures. Free of torch."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
from collections.abc import Callable, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table

from ampcompare.bench.child import measure
from ampcompare.bench.recipe.config import CPU_SIZE, RecipeConfig, misaligned
from ampcompare.config.load import check_option, find_config, read_config, split_override
from ampcompare.config.options import leaves
from ampcompare.config.values import Values
from ampcompare.errors import UserError


def recipe_config(words: Sequence[str], name: str = "recipe_mlp") -> tuple[RecipeConfig, set[str]]:
    """The config from its file and `key=value` words, and the keys that the words named. Raises UserError."""
    known = {leaf.key: leaf for leaf in leaves(RecipeConfig)}
    given = dict(split_override(word) for word in words)
    values = Values(RecipeConfig)
    for key, value in (read_config(find_config(name)) | given).items():
        if key not in known:
            raise UserError(f"{key}: no such key of the recipe; expected one of {', '.join(known)}")
        values.put(known[key], value)
    return values.finished(), set(given)


def run_all(
    config: RecipeConfig, backends: Sequence[str], device: str, rounds: int, say: Callable[[str], None]
) -> dict[str, list[dict[str, Any]]]:
    """Each backend `rounds` times, in turn (A B C A B C), each in a process of its own. Raises UserError."""
    results: dict[str, list[dict[str, Any]]] = {name: [] for name in backends}
    for number in range(rounds):
        for name in backends:
            request = {"backend": name, "config": dataclasses.asdict(config), "device": device}
            results[name].append(measure("recipe.measure", request, f"backend={name}"))
            say(f"round {number + 1}/{rounds}  {name}: {results[name][-1]['seconds']:.3f} s")
    return results


def bench_recipe(
    words: Sequence[str], backends: Sequence[str], device: str, rounds: int, console: Console
) -> None:
    """Measure and print. Raises UserError for bad input."""
    from statistics import median

    from ampcompare.published.publication import load

    for name in backends:
        check_option("backend", name)
    config, given = recipe_config(words)
    where = device_type(device)
    if where == "cpu":
        small: dict[str, Any] = {key: value for key, value in CPU_SIZE.items() if key not in given}
        config = dataclasses.replace(config, **small)
        sizes = ", ".join(f"{k}={v}" for k, v in small.items())
        if small:
            console.print(f"On a CPU the recipe is scaled down ({sizes}): no time here is one of a GPU.")
    for warning in misaligned(config):
        console.print(f"warning: {warning}")
    results = run_all(config, backends, device, rounds, lambda line: console.print(line, highlight=False))
    environment = results[backends[0]][0]["environment"]
    table = Table(title=f"AMP recipe: {config.layers} x {config.width}, batch {config.batch_size}", box=None)
    for column in ("backend", "seconds", "speed-up", "peak bytes", "published s", "published bytes"):
        table.add_column(column, justify="left" if column == "backend" else "right")
    base = median(r["seconds"] for r in results["none"]) if "none" in results else None
    theirs = load("recipe")
    arms = {arm["backend"]: name for name, arm in theirs.arms.items()}
    seconds_of, bytes_of = (theirs.find_figure(name).values for name in ("total_time", "peak_memory"))
    for name, rows in results.items():
        seconds, peak = median(r["seconds"] for r in rows), rows[-1]["peak_bytes"]
        ours = [f"{seconds:.3f}", f"{base / seconds:.2f}x" if base else "-", f"{peak:,}" if peak else "-"]
        published_ones = ["-", "-"]
        if (arm := arms.get(name)) is not None:
            published_ones = [seconds_of[arm].text, f"{int(bytes_of[arm].text):,}"]
        table.add_row(name, *ours, *published_ones)
    console.print(table)
    what = f"{environment['device_name']}, torch {environment['torch']}"
    console.print(f"Medians of {rounds}, each in a process of its own. {what}.", highlight=False)
    console.print(f"Published: {theirs.source}, {theirs.hardware}, {theirs.software}.", highlight=False)
    if where == "cpu":
        console.print("Peak bytes: PyTorch does not count them on a CPU.", highlight=False)


def device_type(device: str) -> str:
    """cpu, cuda or mps: what `device` means here, asked of a process that loads torch. Raises UserError."""
    code = "import sys, ampcompare.machine.device as d; print(d.resolve_device(sys.argv[1]).type)"
    done = subprocess.run([sys.executable, "-c", code, device], capture_output=True, text=True, check=False)
    if done.returncode:
        said = done.stderr.strip().splitlines()[-1].partition("UserError: ")[2]
        raise UserError(said or f"device={device!r}: not there")
    return done.stdout.strip()
