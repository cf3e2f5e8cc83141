"""Pydantic models for files that people write, with one line for each error and its path.

This module imports pydantic. Import it only where such a file is read.
"""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Self, TypeVar

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    ModelWrapValidatorHandler,
    PlainValidator,
    ValidationError,
    model_validator,
)
from pydantic_core import ErrorDetails, InitErrorDetails, PydanticCustomError

from ampcompare.errors import UserError, did_you_mean

MAX_MESSAGE_CHARS = 400  # characters of the message about one error
MAX_VALUE = 100  # characters of a value in a message
OWN_ERROR = "ampcompare"  # the type of errors by `validation_error`, among pydantic's own types
EXPECTED = {
    "missing": "missing; add it",
    "greater_than_equal": "expected at least {ge}",
    "less_than_equal": "expected at most {le}",
    "too_short": "expected {min_length} or more of them",
    "too_long": "expected at most {max_length} of them",
    "int_type": "expected a whole number",
    "string_type": "expected a text",
    "bool_type": "expected true or false",
    "list_type": "expected a list",
    "dict_type": "expected lines of the form key: value",
    "model_type": "expected lines of the form key: value",
}


def validation_error(why: str) -> PydanticCustomError:
    """Return the error that a validator raises, with what is allowed and what to do."""
    return PydanticCustomError(OWN_ERROR, "{why}", {"why": why})


class StrictModel(BaseModel):
    """A part of a file: no other keys than its fields, and no conversion of types."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    @model_validator(mode="wrap")
    @classmethod
    def _reword_errors(cls, content: Any, handler: ModelWrapValidatorHandler[Self]) -> Self:
        try:
            return handler(content)
        except ValidationError as problem:
            raise ValidationError.from_exception_data("", [*map(cls._reword, problem.errors())]) from None

    @classmethod
    def _reword(cls, error: ErrorDetails) -> InitErrorDetails:
        return {
            "type": validation_error(cls._reworded_message(error)),
            "loc": error["loc"],
            "input": error["input"],
        }

    @classmethod
    def _reworded_message(cls, error: ErrorDetails) -> str:
        """Return the message in our words: what is allowed, and what to do."""
        if error["type"] == OWN_ERROR:
            return error["msg"]
        if error["type"] == "extra_forbidden":
            near = did_you_mean(error["loc"][-1], cls.model_fields)
            hint = near or f"expected one of {', '.join(cls.model_fields)}"
            return f"no such key; {hint}"
        template = EXPECTED.get(error["type"], error["msg"].replace("Input should be", "expected"))
        return template.format(**error.get("ctx", {}))


Model = TypeVar("Model", bound=StrictModel)


def parse_model(model: type[Model], content: Any, path: Path) -> Model:
    """Return the content of a file as its model.

    Raises:
        UserError: The content is wrong, with a line for each error.
    """
    try:
        return model.model_validate(content)
    except ValidationError as problem:
        raise file_error(path, [_line(error) for error in problem.errors()]) from None


def file_error(path: Path, lines: Sequence[str]) -> UserError:
    """Return the error for a file, with lines such as `parameters.seed.values[0]=nan: ...`."""
    if len(lines) == 1:
        return UserError(f"{path}: {lines[0]}")
    return UserError(f"{path}: {len(lines)} mistakes:", lines)


def _line(error: ErrorDetails) -> str:
    parts = [part for part in error["loc"] if part != "[key]"]  # of a key that is wrong itself
    path = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in parts)[1:]
    message = error["msg"]
    is_value_shown = not (
        isinstance(error["input"], Mapping) or message.startswith(("missing", "no such key"))
    )
    value = repr(error["input"])
    if len(value) > MAX_VALUE:  # so that the line still has space for what is allowed
        value = f"{value[:MAX_VALUE]}..."
    if not path:
        line = message
    elif is_value_shown:
        line = f"{path}={value}: {message}"
    else:
        line = f"{path}: {message}"
    return line if len(line) <= MAX_MESSAGE_CHARS else f"{line[: MAX_MESSAGE_CHARS - 3]}..."


def _is_finite(value: float) -> bool:
    try:
        return math.isfinite(value)
    except OverflowError:  # a whole number beyond what a float can hold
        return False


def _number(value: Any) -> Any:
    if isinstance(value, bool) or not isinstance(value, int | float) or not _is_finite(value):
        if isinstance(value, str) and value.strip().lstrip("+-")[:1].isdigit():
            raise validation_error("expected a number, without quotes and as 1.0e-3")
        raise validation_error("expected a number")
    return value


def _above_0(value: Any) -> Any:
    if value <= 0:
        raise validation_error("expected a number above 0")
    return value


def is_text(value: Any) -> bool:
    """Return whether a command line and a file can hold the text: no NUL, no lone surrogate."""
    return isinstance(value, str) and not any(c == "\0" or "\ud800" <= c <= "\udfff" for c in value)


def _text(value: str) -> str:
    if not (is_text(value) and value.strip()):
        raise validation_error("expected a text")
    return value


Number = Annotated[float, PlainValidator(_number)]  # a whole one stays whole
Above0 = Annotated[Number, AfterValidator(_above_0)]
Text = Annotated[str, AfterValidator(_text)]
