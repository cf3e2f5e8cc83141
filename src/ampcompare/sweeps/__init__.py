"""Run W&B sweep files without W&B's server: one process per run, state in a journal."""
