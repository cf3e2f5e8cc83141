"""What a sweep is, as its database keeps it: a file that says something else is another sweep.

But for more seeds: they are the same sweep, continued. The database keeps them in groups, each written once,
so that every worker has the same runs under the same numbers.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ampcompare.errors import UserError
from ampcompare.sweeps.check import training_words
from ampcompare.sweeps.file.command import DEFAULT_COMMAND
from ampcompare.sweeps.file.parameters import Parameter, complete, kind_of
from ampcompare.sweeps.file.sweep import Sweep
from ampcompare.sweeps.points import SEED, Cells

DEFINING = ("method", "parameters", "metric", "early_terminate", "program", "command")
WORDS, CONTROL, ORDER = "words of the command line", "control", "order"
CELLS = "runs of a seed"  # of sweeps in which not each point is a run of its own; others do not say it
BLOCKS = "blocks"  # the order of sweeps from here on; those that say none have the file's
MOST_SEEDS = 10_000  # that are compared one by one


@dataclass(frozen=True)
class Added:
    """A group of seeds: those that came, and what was said of the look that asked for them, if any.

    A look that asked for none (`is_last`) ended it: all was decided, or no more looks were planned.
    """

    seeds: tuple[Any, ...]
    look: int | None = None  # the number of seeds at which somebody looked
    said: tuple[str, ...] = ()

    @property
    def is_last(self) -> bool:
        return self.look is not None and not self.seeds


def definition(sweep: Sweep, words: Sequence[str]) -> dict[str, Any]:
    """What makes a sweep the one it is, as JSON has it."""
    ours: dict[str, Any] = {key: sweep.raw.get(key) for key in DEFINING}
    # In their order, which is that of the grid.
    ours["parameters"] = [*(sweep.raw.get("parameters") or {}).items()]
    made: dict[str, Any] = {WORDS: sorted(words), CONTROL: sweep.control, ORDER: BLOCKS}
    if sweep.cells is not None:
        made[CELLS] = sweep.cells
    return json.loads(json.dumps(ours | made))


def agreed(sweep: Sweep, theirs: Mapping[str, Any], ours: Mapping[str, Any]) -> tuple[Sweep, tuple[Any, ...]]:
    """The sweep as it began by the database, and the seeds that the file has beyond those it began with.

    Raises UserError with the keys in which the file says something else.
    """
    old = {CONTROL: False, ORDER: None, **theirs}
    began_so = (ORDER, CELLS)  # a sweep goes on as it began, whatever would be made of its file now
    changed = [key for key in ours if key not in began_so and _differ(ours[key], old.get(key))]
    if {"program", "command"} & set(changed) and _trains_the_same(sweep, old):
        changed = [key for key in changed if key not in ("program", "command")]
    sweep = dataclasses.replace(sweep, in_file_order=old[ORDER] is None, cells=_cells(old.get(CELLS)))
    words = sorted({*ours[WORDS]} ^ {*(old.get(WORDS) or ())})
    if words and WORDS in changed:  # by their names, as the file's keys
        changed[changed.index(WORDS)] = f"{WORDS} ({', '.join(words[:3])}{', ...' if len(words) > 3 else ''})"
    if "parameters" not in changed or not sweep.is_grid:
        return _unless(changed, sweep), ()
    before, now = dict(old["parameters"]), dict(ours["parameters"])
    names = [name for name in {**before, **now} if _differ(before.get(name), now.get(name))]
    moved = [*before] != [*now]
    seeds = [_seeds(before.get(SEED)), _seeds(now.get(SEED))]
    if names != [SEED] or moved or None in seeds:
        named = ", ".join(f"parameters.{name}" for name in names) or "the order of parameters"
        return _unless([named if key == "parameters" else key for key in changed], sweep), ()
    changed.remove("parameters")
    if gone := [seed for seed in seeds[0] or () if seed not in (seeds[1] or ())]:
        changed.append(f"parameters.{SEED} ({', '.join(map(str, gone[:3]))} is gone; it can only get more)")
    began = tuple(_began(p, before[SEED]) if p.path == (SEED,) else p for p in sweep.parameters)
    more = tuple(seed for seed in seeds[1] or () if seed not in (seeds[0] or ()))
    return dataclasses.replace(_unless(changed, sweep), parameters=began), more


def _cells(written: Any) -> Cells | None:
    if written is None:
        return None
    return tuple(tuple(cell and (cell[0], cell[1]) for cell in block) for block in written)


class Changed(UserError):
    """A database holds another sweep under this name; the message is the list of what differs."""


def _unless(changed: Sequence[str], sweep: Sweep) -> Sweep:
    if changed:
        raise Changed(", ".join(changed))
    return sweep


def _differ(one: Any, other: Any) -> bool:
    """Whether two parts of a definition do, the order in them included: it is that of the grid."""
    return json.dumps(one) != json.dumps(other)


def _began(parameter: Parameter, spec: Mapping[str, Any]) -> Parameter:
    kind = kind_of(spec)
    assert kind
    return Parameter(parameter.path, kind, complete(kind, spec))


def _seeds(spec: Any) -> list[Any] | None:
    """Every seed that a parameter of a file names; None where it is none that can be listed."""
    kind = kind_of(spec) if isinstance(spec, dict) else None
    if kind is None:
        return None
    parameter = Parameter((SEED,), kind, complete(kind, spec))
    if not parameter.is_listed or parameter.grid_size() > MOST_SEEDS:
        return None
    return [parameter.grid_value(i) for i in range(parameter.grid_size())]


def _trains_the_same(sweep: Sweep, old: Mapping[str, Any]) -> bool:
    """Whether our training is run by the same words, however it is called: `run_experiment.py` became
    `python -m ampcompare run` in the files that come along, and they came to say `resume=auto`, which is what
    a sweep of ours tells each run anyway.
    """
    command = tuple(map(str, old.get("command") or DEFAULT_COMMAND))
    before = Sweep(Path(), "", "grid", (), program=old.get("program"), command=command)
    now, then = (_but_resume(training_words(one)) for one in (sweep, before))
    return now is not None and now == then


def _but_resume(words: tuple[str, ...] | None) -> list[str] | None:
    return None if words is None else [word for word in words if word != "resume=auto"]
