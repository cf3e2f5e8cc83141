"""The last line of what a run printed, which says why it failed."""

from pathlib import Path

LAST_BYTES = 16_384  # of a log, which are read
MAX_LINE_CHARS = 1_000
WANDB_LINES = "wandb:"  # how lines of W&B's client begin
RECORD_LINE = "record: "  # how a run's last lines begin
RECORD_LINES = 5  # how many of them there are at most


def last_line(log: Path) -> str:
    """Return the last line that a program printed, or an empty text.

    Lines of W&B's client and a run's lines about its record are skipped: they come after the reason of a
    failure.
    """
    try:
        with log.open("rb") as file:
            file.seek(max(0, log.stat().st_size - LAST_BYTES))
            printed = file.read().decode(errors="replace").splitlines()
    except (OSError, ValueError):
        return ""
    lines = [line.strip() for line in printed if line.strip() and not line.startswith(WANDB_LINES)]
    for index in range(len(lines) - 1, max(-1, len(lines) - 1 - RECORD_LINES), -1):
        if lines[index].startswith(RECORD_LINE):
            lines = lines[:index]
            break
    line = lines[-1].removeprefix("error: ") if lines else ""
    # Cut between two words, so that no option or command loses a part.
    return line if len(line) <= MAX_LINE_CHARS else f"{line[:MAX_LINE_CHARS].rpartition(' ')[0]} ..."
