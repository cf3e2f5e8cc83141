"""The options of a run, read and checked."""
