"""W&B sweep files run without a server: the same file, search and state by Optuna, one process a run."""
