"""What W&B's client is told of values."""

from __future__ import annotations

import subprocess
import sys


def test_a_list_in_a_summary_loads_no_pandas_and_a_table_is_still_known():
    code = """
import sys
from ampcompare.wandb_client.values import leave_pandas_out
leave_pandas_out()
import wandb.util
assert not wandb.util.is_pandas_data_frame([None])
assert "pandas" not in sys.modules
import pandas
assert wandb.util.is_pandas_data_frame(pandas.DataFrame({"a": [1]}))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
