"""Sweeps: file > points > driver > executor > journal; `--status` and the report read the journal.

A sweep file (sweep_file.py, sweep.py) gives points (samplers.py). The driver
(driver.py) starts them on an executor (executors/), as decided in decisions.py, and writes every event to
the journal (journal.py). What became of a run is in run_end.py.
"""
