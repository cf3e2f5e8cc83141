"""Writes the record of a run with W&B."""
