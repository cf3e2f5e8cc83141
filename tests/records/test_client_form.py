"""The tests' own writer against W&B's client: what is measured on its records is true of real ones."""

from __future__ import annotations

import pytest
from support.client_form import client_records
from support.log_writer import frame
from support.offline_runs import plan

from ampcompare.records.wandb_file import read_wandb_file

PLAN = plan("native", name="usual")
BY_CLOCK = ("_runtime", "_timestamp", "_wandb.runtime")  # their values are of the moment


def test_both_read_as_the_same_run(real_runs, tmp_path):
    file = tmp_path / "run-native223.wandb"
    file.write_bytes(frame(client_records(PLAN, "native223")))
    ours, theirs = read_wandb_file(file), read_wandb_file(real_runs["usual"])
    assert ours.logged.keys() == theirs.logged.keys()
    for name in set(ours.logged) - set(BY_CLOCK):
        assert ours.logged[name][0].tolist() == theirs.logged[name][0].tolist()
        assert ours.values(name).tolist() == pytest.approx(theirs.values(name).tolist(), abs=0)
    assert (ours.name, ours.exit_code, ours.problems) == (theirs.name, theirs.exit_code, theirs.problems)
    own = {key: value for key, value in ours.summary.items() if key not in BY_CLOCK}
    assert own == {key: value for key, value in theirs.summary.items() if key in own}
