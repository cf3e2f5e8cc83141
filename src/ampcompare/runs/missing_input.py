"""`MissingInput`: what logs of other programs do not say and the user must say, with a command to copy."""

from collections.abc import Sequence

from ampcompare.errors import UserError


class MissingInput(UserError):
    """Information that runs of other programs do not have and the user must give.

    Attributes:
        questions: One line for each missing item, with its candidates.
        arguments: Example arguments for the command line.
        arms: Example sources with names (`fp32=logs/a`); empty if the sources stay as they are.
    """

    def __init__(self, questions: Sequence[str], arguments: Sequence[str], arms: Sequence[str] = ()) -> None:
        self.questions = tuple(questions)
        self.arguments = tuple(arguments)
        self.arms = tuple(arms)
        example = " ".join([*self.arms, *self.arguments])
        super().__init__(self.summary, [*self.questions, f"for example: {example}"])

    @property
    def summary(self) -> str:
        """The first line of the message."""
        return "these logs lack information that the report needs"

    def as_command(self, command: str) -> UserError:
        """Return the error with a complete command to copy."""
        return UserError(self.summary, [*self.questions, f"for example: {command}"])
