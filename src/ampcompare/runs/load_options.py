"""What the user says about logs that do not say it themselves."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ampcompare.errors import UserError

NO_STEP = "none"  # --step none: the order of the rows
LAST, JOINED = "last", "joined"
RUNS = "runs"


@dataclass(frozen=True, kw_only=True)
class ReadingOptions:
    """How tables and JSON lines of other programs are read, and what the names of runs mean.

    Attributes:
        step: The step column; `none` for the order of the rows, None for the usual names.
        run_by: Columns, separated by commas, of which each value is a run.
        starts: Which starts of one run count: LAST, or JOINED for a run that was resumed.
        rows: RUNS if each row is a run.
        run_name: A pattern with `*` and `{key}` for the names of runs or of their files.
        where: The conditions of `--where`, as the user wrote them.

    Raises:
        UserError: An option has a bad value.
    """

    step: str | None = None
    run_by: str | None = None
    starts: str | None = None
    rows: str | None = None
    run_name: str | None = None
    where: Sequence[str] = ()

    def __post_init__(self) -> None:
        if self.starts not in (None, LAST, JOINED):
            raise UserError(f"--starts {self.starts!r}: expected {LAST} or {JOINED}")
        if self.rows not in (None, RUNS):
            raise UserError(f"--rows {self.rows!r}: expected {RUNS}")

    @property
    def run_columns(self) -> list[str]:
        """The columns of which each value is a run."""
        return [name.strip() for name in (self.run_by or "").split(",") if name.strip()]

    def conditions_on(self, columns: Sequence[str]) -> Iterator[tuple[str, str, str | None]]:
        """Yield the key, the column and the value of each `--where` that is about one of these columns.

        The key is "" for a condition on all keys. The value is None if the column is only tested for a value.
        """
        for text in self.where:
            key, test = "", text
            for position in (index for index, sign in enumerate(text) if sign == ":"):
                if text[:position] in columns:
                    key, test = text[:position], text[position + 1 :]
            column, equals, value = test.removeprefix("!").partition("=")
            if test.removeprefix("!") in columns:
                column, equals = test.removeprefix("!"), ""
            if column in columns:
                yield key, column, value if equals else None
