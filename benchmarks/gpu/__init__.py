"""The GPU check: what is run, what it needs, for how long, what is taken home. Started by `gpu_check.py`."""

from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
