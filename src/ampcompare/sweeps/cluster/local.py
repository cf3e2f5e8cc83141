"""`--cluster local`: the same tasks on this machine, by submitit's local executor, to try an array out."""

from __future__ import annotations

import time
from typing import Any

from ampcompare.errors import UserError
from ampcompare.report.words import plural
from ampcompare.sweeps.cluster.whole import WholeArray
from ampcompare.sweeps.devices import visible_gpus
from ampcompare.sweeps.run import EXIT_FAILED_RUNS

MOST_LOCAL = 8  # runs: submitit's local executor starts all of them at once
LOCAL_MINUTES = 7 * 24 * 60


class Local:
    """All runs at once on this machine; this command waits for them."""

    def __init__(self, array: WholeArray, executor: Any) -> None:
        self.array, self.executor = array, executor

    def run(self) -> int:
        array, book = self.array, self.array.book
        runs = array.runs()
        left = [run for run in runs if book.ended(run.run_id) is None]
        failed = [run for run in runs if book.ended(run.run_id)]
        said = array.headline(len(runs) - len(left) - len(failed), len(failed))
        if len(left) > MOST_LOCAL:
            why = f"--cluster local starts all runs at once, {MOST_LOCAL} at most, and {len(left)} are left"
            raise UserError(f"{why}; leave --cluster out, which runs them one after the other")
        shared = ", all at once on this machine, so their times are not comparable" if len(left) > 1 else ""
        array.say(f"{said}; {plural(len(left), 'run')} started{shared}, in {array.folder}")
        gpus = [] if array.on_cpu else visible_gpus()
        jobs = []
        try:
            for place, run in enumerate(left):
                own = [int(gpus[place % len(gpus)])] if gpus and all(g.isdigit() for g in gpus) else []
                self.executor.update_parameters(
                    timeout_min=LOCAL_MINUTES, gpus_per_node=len(own), visible_gpus=own
                )
                jobs.append(self.executor.submit(array.task(run, 60.0)))
            while any(job._process.poll() is None for job in jobs):
                time.sleep(0.2)
        finally:
            for job in jobs:
                job._process.terminate()
        ended = {run.run_id: book.ended(run.run_id) for run in left}
        if undone := [run for run, code in ended.items() if code is None]:
            array.say(f"{plural(len(undone), 'run')} did not end ({', '.join(undone[:5])}); see {book.jobs}")
            return EXIT_FAILED_RUNS
        return array.finish([*failed, *(run for run in left if ended[run.run_id])])
