"""Short trainings with some modules kept in fp32, run by the sweep runner: records, logs, resuming and
`--workers` are its own. What was run once in a folder is not run again.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml
from rich.console import Console

from ampcompare import metrics
from ampcompare.config.options import listed
from ampcompare.config.schema import Config
from ampcompare.data.sources import SOURCES
from ampcompare.errors import UserError
from ampcompare.precision.backends import REGISTRY
from ampcompare.program.files import make_folder
from ampcompare.records import RunRecord, load_runs
from ampcompare.sweeps.run import run_sweep

KEY = "precision.keep_fp32"
SETTING, LOG = "setting.yaml", "sweeps.log"
ROWS = 4  # of a trial: the last one is the mean over the last quarter of its steps
BASELINE = next(name for name, backend in REGISTRY.items() if backend.is_fp32)
Kept = tuple[str, ...]


@dataclass(frozen=True)
class Trial:
    """A trial as it ended: the mean training loss of the last rows' steps (NaN, inf as they are), the median
    and 95th percentile of its step times in ms and its peak memory in MiB, where these were measured.
    `trained`: whether any of its steps was taken; each that overflows is skipped.
    """

    run_id: str
    loss: float
    step_ms: float | None = None
    slow_ms: float | None = None
    peak_mib: float | None = None
    trained: bool = True
    failed: bool = False


# A trial that ended with an error: some networks cannot be computed with just these modules in another type.
FAILED = Trial("", math.nan, trained=False, failed=True)


class Stopped(Exception):
    """The runs were stopped from outside; `status` is the exit code."""

    def __init__(self, status: int) -> None:
        super().__init__(status)
        self.status = status


@dataclass
class Trials:
    """The trials of a setting in a folder of their own. `always` is kept in each but the baseline."""

    config: Config
    folder: Path
    steps: int
    workers: int = 1
    always: Kept = ()  # in order
    sources: Mapping[str, Any] = field(default_factory=dict)  # of what is not ours: hashes, versions
    done: dict[tuple[str, Kept], Trial] = field(default_factory=dict)

    def prepare(self) -> None:
        """Make the folder with the setting of all trials in it. Raises UserError, also where those that are
        there are of another setting.
        """
        make_folder(self.folder, f"--out {str(self.folder)!r}")
        setting, file = setting_of(self.config, self.folder, self.steps), self.folder / SETTING
        said = {"backend": self.config.backend, **self.sources}
        about = "".join(f"# {key}: {value}\n" for key, value in said.items())
        content = f"{about}{yaml.safe_dump(setting, sort_keys=False)}"
        if file.is_file() and file.read_text(encoding="utf-8") != content:
            todo = "name another folder, or leave --out out"
            raise UserError(f"--out {str(self.folder)!r}: holds trials of another setting; {todo}")
        file.write_text(content, encoding="utf-8")

    def baseline(self) -> Trial:
        """Under fp32."""
        return self._of(BASELINE, [()])[0]

    def of(self, sets: Sequence[Kept]) -> list[Trial]:
        """Under the backend with each of these sets of modules kept, in one sweep."""
        return self._of(self.config.backend, [tuple(sorted({*self.always, *one})) for one in sets])

    def _of(self, backend: str, sets: Sequence[Kept]) -> list[Trial]:
        wanted = [one for one in dict.fromkeys(sets) if (backend, one) not in self.done]
        if wanted:
            self._run(backend, wanted)
            self.done |= read(self.folder)
        missing = [one for one in wanted if (backend, one) not in self.done]
        if self.always in missing or () in missing:  # nothing that was kept for the search can be the reason
            what = f"the trial of backend={backend} without modules of the search left no losses"
            raise UserError(f"{self.folder}: {what}; its output is in {self.folder / 'logs'}")
        self.done |= {(backend, one): FAILED for one in missing}
        return [self.done[backend, one] for one in sets]

    def _run(self, backend: str, sets: Sequence[Kept]) -> None:
        values = [",".join(one) or None for one in sets]
        name = hashlib.sha256(json.dumps([backend, values]).encode()).hexdigest()[:12]
        file = self.folder / f"trial-{name}.yaml"
        config = str(self.folder.resolve() / SETTING)
        content = {
            "program": "ampcompare",
            "name": f"trial-{name}",
            "method": "grid",
            "parameters": {"backend": {"value": backend}, KEY: {"values": values}},
            "command": [
                *("${env}", "${interpreter}", "-m", "${program}"),
                *("run", "--config", config, "${args_no_hyphens}"),
            ],
        }
        file.write_text(yaml.safe_dump(content, sort_keys=False), encoding="utf-8")
        with (self.folder / LOG).open("a", encoding="utf-8") as log:
            console = Console(file=log, width=200, highlight=False)
            words = [f"output_dir={self.folder}"]
            status = run_sweep(str(file), words, console, workers=self.workers, report=False)
        if status > 128:
            raise Stopped(status)


def setting_of(config: Config, folder: Path, steps: int) -> dict[str, Any]:
    """The config of all trials as a file has it: short, without checkpoints, offline; backend and kept
    modules are each trial's own.
    """
    found = config.to_dict()
    warm_up = min(config.log.warmup_steps, steps // 3)
    found |= {"max_steps": steps, "resume": "never", "output_dir": str(folder)}
    del found["backend"]
    found["precision"].pop("keep_fp32")
    found["log"] |= {"every": max(1, math.ceil(steps / ROWS)), "warmup_steps": warm_up}
    found["checkpoint"] |= {"every_epochs": None, "every_minutes": None}
    found["diagnostics"]["every"] = None
    found["training"]["on_nan"] = "continue"  # that is what is looked for
    found["wandb"]["mode"] = "offline"
    if config.data.source in SOURCES and config.data.test_limit is None:
        found["data"]["test_limit"] = config.eval.batch_size  # an evaluation at the end there is; a short one
    for group in ("published", "plan"):
        found.pop(group, None)
    return found


def read(folder: Path) -> dict[tuple[str, Kept], Trial]:
    """The trials in a folder by backend and kept modules; those without a loss are not there."""
    found: dict[tuple[str, Kept], Trial] = {}
    for run in load_runs([str(folder)]):
        loss = last_loss(run)
        if run.state == "finished" and loss is not None:
            kept = tuple(sorted(listed(run.option(KEY)) or ()))
            numbers = (metrics.STEP_TIME_P50, metrics.STEP_TIME_P95)
            step, slow = (run.summary_number(key) for key in numbers)
            found[str(run.option("backend")), kept] = Trial(
                run.id, loss, step, slow, _peak(run), _takes_steps(run)
            )
    return found


def last_loss(run: RunRecord) -> float | None:
    """The loss in the last row that has one, NaN where it is; None of a run without any."""
    _, values = run.logged_numbers(metrics.LOSS)
    return float(values[-1]) if len(values) else None


def _takes_steps(run: RunRecord) -> bool:
    skipped, done = (run.numbers(key) for key in (metrics.SKIPPED, metrics.STEP))
    counts = [(s, d) for s, d in zip(skipped, done, strict=True) if not math.isnan(s) and not math.isnan(d)]
    return not counts or bool(counts[-1][0] < counts[-1][1])


def _peak(run: RunRecord) -> float | None:
    values = [v for v in run.numbers(metrics.PEAK_MEMORY) if not math.isnan(v)]
    return max(values, default=None)


def words_of(kept: Iterable[str]) -> str:
    """The option that keeps these modules, as one types it."""
    return f"{KEY}={','.join(kept)}"
