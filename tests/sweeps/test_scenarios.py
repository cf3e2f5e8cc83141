"""Journals, messages and `--status` of whole sweeps are those of the golden file.

It was written by the code before the driver's decisions were separated from their effects. The description of
`signal_to_all` alone differs: a run that a batch system's signal ended before the driver received the signal
is interrupted, and does not count as ended by a signal from outside.

To write it again: python tests/support/sweep_scenarios.py src FOLDER > tests/sweeps/golden/scenarios.yaml
"""

from pathlib import Path

import pytest
import yaml
from support.quick import ROOT
from support.sweep_scenarios import describe

GOLDEN = Path(__file__).with_name("golden") / "scenarios.yaml"
# The others are parts of these, or wait for a time (hyperband, second_stop, driver_killed_twice).
PLAYED = (
    *(
        "rerun",
        "killed_by_signal",
        "continued",
        "interrupted_orderly",
        "signal_to_all",
        "stop_that_is_ignored",
    ),
    *("driver_killed", "driver_killed_orderly", "driver_killed_and_run_finishes", "search_with_target"),
    *("cannot_start", "changed_code", "added_points", "own_training"),
)


@pytest.mark.slow
@pytest.mark.parametrize("name", PLAYED)
def test_a_sweep_leaves_the_same_journal_status_and_messages(tmp_path, name):
    ((_, description),) = describe(ROOT / "src", tmp_path, [name])
    assert description == yaml.safe_load(GOLDEN.read_text())[name]
