"""What ends a training in one line."""


class TrainingError(Exception):
    """The training cannot go on: one line that names the reason and what to try. Exit code 1."""
