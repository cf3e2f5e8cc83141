"""Checkpoints of a run: when they are written, and where they are found."""
