"""Options of 0.4 that 0.5 has not, each with what to do instead.

Whoever still writes one of them reads this in place of "no such option". The tables go in 0.6.
"""

# By the command and its option: ("ampcompare report", "--watch").
COMMAND_OPTIONS: dict[tuple[str, str], str] = {
    ("ampcompare bench", "--chart"): "the report draws the speed-ups: ampcompare report RUNS --bench FILE",
    ("ampcompare sweep", "--changed-code"): "restore the old code, or set another output_dir=...",
    ("ampcompare report", "--publish"): "share the folder of the report",
    ("ampcompare report", "--watch"): "look at W&B's live page, or give the command again",
    ("ampcompare report", "--port"): "the report has no server; open its index.html in a browser",
}
# By the key of a run's option: "training.on_nonfinite_buffers".
RUN_OPTIONS: dict[str, str] = {
    "training.on_nonfinite_buffers": "leave it out: a skipped step leaves buffers as PyTorch does",
}
# By the key of a run's option: the values that changed nothing, which runs of 0.4 record.
WITHOUT_EFFECT: dict[str, tuple[object, ...]] = {"training.on_nonfinite_buffers": ("warn", "say")}


def had_no_effect(key: str, value: object) -> bool:
    """Return whether a recorded option that went had a value under which the run is as without it."""
    return value in WITHOUT_EFFECT.get(key, ())
