"""`ampcompare why guard`: from its words to the option to use."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from ampcompare.config.schema import Config
from ampcompare.errors import UserError, one_line
from ampcompare.precision import backend_of
from ampcompare.program.console import print_line
from ampcompare.program.files import make_folder
from ampcompare.why.guard.costs import Cost, costs, doubts
from ampcompare.why.guard.hunt import WHOLE, Hunt
from ampcompare.why.guard.modules import Network, look_at
from ampcompare.why.guard.trials import BASELINE, Stopped, Trial, Trials, setting_of, words_of
from ampcompare.why.ready import configured

MARGIN, STEPS = 0.05, 40
NOT_FOUND = 1  # the exit code where keeping modules does not help


def run_guard(
    words: Sequence[str],
    console: Console,
    *,
    margin: float = MARGIN,
    steps: int = STEPS,
    workers: int = 1,
    out: Path | None = None,
    to: Path | None = None,
) -> int:
    """Find the modules that must stay in fp32, print how and what that costs; returns the exit code: 0 where
    they were found or nothing is wrong, 1 where keeping modules does not help, 128 + signal when stopped.

    `out` is the folder of the trials, `to` a JSON file. Raises UserError.
    """
    if not 0 < margin < math.inf:
        raise UserError(
            f"--margin {margin}: expected a number above 0, a share of the baseline's loss such as 0.05"
        )
    config = configured(words)
    if backend_of(config.backend).is_fp32:
        raise UserError(f"backend={config.backend}: is fp32 here; name one that is not, such as backend=fp16")
    if to is not None:
        make_folder(to.parent, f"--json {str(to)!r}")
    network = look_at(dataclasses.replace(config, backend=BASELINE, execution="eager"))
    if not network.work:
        raise UserError(
            f"model.name={config.model.name!r}: calls no modules, so there are none to choose from"
        )
    always = tuple(sorted(config.precision.keep_fp32 or ()))
    sources = {**network.sources, **backend_of(config.backend).record()}
    folder = out or _folder(config, steps, sources)
    trials = Trials(config, folder, steps, workers, always, sources)
    trials.prepare()

    def say(line: str) -> None:
        print_line(console, one_line(line))

    hunt = Hunt(trials, network, margin, say)
    count = f"{len(network.work)} modules, {steps} steps each trial, in {trials.folder}"
    say(f"{config.backend} on {config.model.name}: {count}, on {network.device}")
    try:
        return _answer(hunt, always, console, to)
    except Stopped as stopped:
        say("stopped: trials that ended are kept; the same command goes on from them")
        return stopped.status


def _answer(hunt: Hunt, always: Sequence[str], console: Console, to: Path | None) -> int:
    def say(line: str = "") -> None:
        print_line(console, one_line(line))

    baseline, plain = hunt.begin()
    if not math.isfinite(baseline.loss):
        raise UserError("the loss of fp32 itself is not finite after these steps: not a matter of precision")
    told: dict[str, Any] = {"outcome": "", "kept": [], "use": None, "costs": []}
    status, percent = 0, f"{hunt.margin * 100:.3g} %"
    name = hunt.trials.config.backend
    if hunt.cures(plain):
        told["outcome"] = "no problem"
        ends = f"{name} ends at {plain.loss:.4g}, fp32 at {baseline.loss:.4g}"
        say(f"{ends}, and {percent} above is allowed: nothing has to be kept in fp32")
    elif (found := hunt.find()) is None:
        told["outcome"], status = "not a module", NOT_FOUND
        say(f"with the whole network in fp32 the loss is still not within {percent}:")
        say("it is not the precision of a module; what is left is the loss itself, its scale, the updates")
    else:
        measured = costs(hunt.trials, found)
        use = words_of((*always, *found))
        told |= {
            "outcome": "found",
            "kept": found,
            "use": use,
            "costs": [dataclasses.asdict(c) for c in measured],
        }
        _show(found, measured, hunt, console, say)
    told["trials"] = {"frame": len(hunt.frame), "search": len(hunt.asked)}
    say(f"{len(hunt.frame)} trials around the search, {len(hunt.asked)} in it")
    if told["use"]:
        say(f"use: {shlex.quote(told['use'])}")
    if to is not None:
        to.write_text(json.dumps(_whole(hunt, baseline, plain, told), indent=1) + "\n", encoding="utf-8")
    return status


def _show(found: Sequence[str], measured: Sequence[Cost], hunt: Hunt, console: Console, say: Any) -> None:
    noun = "this module" if len(found) == 1 else f"these {len(found)} modules"
    needs = f"{noun} in fp32: {', '.join(found)}" if found != [WHOLE] else "the whole network in fp32"
    say(f"to stay within the margin {hunt.trials.config.backend} needs {needs}")
    table = Table("kept in fp32", "step time", "peak memory", title=f"what it costs on {hunt.network.device}")
    table.title_justify = "left"
    for cost in measured:
        name = ", ".join(cost.kept) if len(cost.kept) <= 3 else f"all {len(cost.kept)}"
        table.add_row(name, _more(cost.ms, cost.plain_ms, "ms"), _more(cost.mib, cost.plain_mib, "MiB"))
    console.print(table)
    timed = hunt.trials.steps - min(hunt.trials.config.log.warmup_steps, hunt.trials.steps // 3)
    for line in doubts(timed, hunt.trials.workers, hunt.network.on_host, measured):
        say(f"note: {line}")


def _more(value: float | None, plain: float | None, unit: str) -> str:
    if value is None or plain is None:
        return "not measured"
    share = f" ({value / plain:+.1%})" if plain else ""
    return f"{value:+.3g} {unit} to {plain:.4g}{share}"


def _folder(config: Config, steps: int, sources: Mapping[str, Any]) -> Path:
    """A folder that is the same for the same setting, so that the same command goes on."""
    whole = [config.backend, setting_of(config, Path(), steps), config.precision.keep_fp32, sources]
    digest = hashlib.sha256(json.dumps(whole, default=str).encode()).hexdigest()[:8]
    return Path("runs") / f"guard-{backend_of(config.backend).label}-{digest}"


def _whole(hunt: Hunt, baseline: Trial, plain: Trial, told: dict[str, Any]) -> dict[str, Any]:
    """All of it, for programs; a loss that is not finite as a text, which JSON has no number for."""

    def as_dict(trial: Trial) -> dict[str, Any]:
        values = dataclasses.asdict(trial)
        return values | {"loss": trial.loss if math.isfinite(trial.loss) else str(trial.loss)}

    network: Network = hunt.network
    return {
        "backend": hunt.trials.config.backend,
        "model": hunt.trials.config.model.name,
        "device": network.device,
        "steps": hunt.trials.steps,
        "margin": hunt.margin,
        "folder": str(hunt.trials.folder),
        "modules": list(network.work),
        "baseline": as_dict(baseline),
        "plain": as_dict(plain),
        **told,
        "asked": [
            {"kept": list(kept), **as_dict(trial), "cures": hunt.cures(trial)} for kept, trial in hunt.asked
        ],
    }
