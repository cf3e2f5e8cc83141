"""What ends a training in one line."""


class TrainingError(Exception):
    """The training cannot go on: one line that names the reason and what to try. Exit code 1."""


class _ClassesKnown:
    """Inside, a class or token that loss or network have no place for, seen in no look before training, is
    one line. On a GPU it is an error of the device, which comes later and from anywhere.
    """

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, problem: BaseException | None, trace: object) -> None:
        if isinstance(problem, IndexError):
            todo = "are all targets and tokens below what the network has? What is not to count is -100"
            raise TrainingError(f"network or loss: {problem}; {todo}") from problem


CLASSES_KNOWN = _ClassesKnown()  # one for all steps
