"""The GPU check: what is run, what it needs, for how long, and what is taken home. `gpu_check.py` beside it starts it."""

from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
