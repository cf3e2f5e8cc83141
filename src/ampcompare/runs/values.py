"""Read what a program wrote as text as numbers: one parser for the cells of CSV files and for JSON lines."""

from typing import Any

import numpy as np

from ampcompare.runs.nested import as_text, is_number
from ampcompare.runs.run_record import as_array

PERCENT, SECONDS, DATE = "percent", "seconds", "date"  # what texts declare of their values
TRUTH = {"true": True, "false": False}
DECIMAL_COMMA = r"[-+]?\d+,\d+(?:e[-+]?\d+)?\s*%?"
DURATION = (
    r"(?:\d+ days?,? )?(?:\d+:)?\d+:[0-5]?\d(?:\.\d*)?"
    r"|(?=.*[hs])(?:\d+\s*h\s*)?(?:\d+\s*m(?:in)?\s*)?(?:\d+(?:\.\d+)?\s*(?:ms|s|sec|seconds?))?"
)
DATE = r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d.*"


def read_values(values: np.ndarray, *, decimal_comma: bool = False) -> tuple[np.ndarray, str, str]:
    """Return the values of a column with texts read as numbers.

    A column of numbers, of percentages (`85.3%`), of durations (`00:55`, `1 day, 2:03:04`, `1m 3s`) or of
    dates with times becomes numbers. Durations are in seconds, dates in seconds since 1970, in UTC if no zone
    is named. In another column each text that is a number becomes one.

    Args:
        values: Numbers, texts, truth values, lists.
        decimal_comma: Whether `0,5` is a half.

    Returns:
        The values; their unit, one of PERCENT, SECONDS, DATE or ""; and a text that is no number, "" if the
        column is of one kind.
    """
    is_text = np.array([isinstance(value, str) for value in values], bool)
    if values.dtype != object or not is_text.any():
        return values, "", ""
    import pandas as pd  # only where a file has texts

    texts = pd.Series(values[is_text], dtype=str).str.strip()
    if decimal_comma:
        has_comma = texts.str.fullmatch(DECIMAL_COMMA, case=False)
        texts = texts.where(~has_comma, texts.str.replace(",", "."))
    if is_text.all():
        whole = _read_column(texts)
        if whole is not None:
            return whole
    read = values.copy()
    numbers = _to_numbers(texts)
    is_number_text = (numbers.notna() | (texts.str.lower().str.lstrip("+-") == "nan")).to_numpy()
    where = np.flatnonzero(is_text)
    read[where[is_number_text]] = numbers.to_numpy()[is_number_text]
    others = texts[~is_number_text]
    if not len(others):
        return as_array(list(read)), "", ""
    is_mixed = is_number_text.any() or any(is_number(value) for value in values[~is_text])
    is_mixed |= others.str.endswith("%").any()
    return read, "", str(others.iloc[0]) if is_mixed else ""


def _read_column(texts: Any) -> tuple[np.ndarray, str, str] | None:
    """Return what a column of texts of one kind means; None for another column, and for plain numbers."""
    import pandas as pd

    if texts.str.endswith("%").all():
        percentages = _to_numbers(texts.str.removesuffix("%"))
        return (percentages.to_numpy(), PERCENT, "") if percentages.notna().all() else None
    if texts.str.fullmatch(DURATION).all():
        with_hours = texts.where(
            texts.str.count(":") != 1, texts.str.replace(r"(\d+:\d+)", r"0:\1", regex=True)
        )
        durations = pd.to_timedelta(with_hours, errors="coerce").dt.total_seconds()
        return (durations.to_numpy(float), SECONDS, "") if durations.notna().all() else None
    if texts.str.fullmatch(DATE).all():
        dates = pd.to_datetime(texts, format="ISO8601", utc=True, errors="coerce")
        seconds = (dates - pd.Timestamp(0, tz="UTC")).dt.total_seconds()
        return (seconds.to_numpy(float), DATE, "") if seconds.notna().all() else None
    if texts.str.lower().isin([*TRUTH]).all():
        return texts.str.lower().map(TRUTH).to_numpy(object), "", ""
    return None


def _to_numbers(texts: Any) -> Any:
    import pandas as pd

    return pd.to_numeric(texts, errors="coerce").astype(float)


def first_numbers(values: np.ndarray) -> np.ndarray | None:
    """Return the numbers of a step that is written as a text or a list, None where its meaning is not plain.

    `1/10` is 1. Lists such as `[1, 20]`, in JSON or as text, are counted in the order of their elements.
    """
    import pandas as pd

    if all(isinstance(value, str) for value in values):
        texts = pd.Series(values, dtype=str).str.strip()
        parts = texts.str.extract(r"^(\d+(?:\.\d+)?)\s*/\s*\d+(?:\.\d+)?$")[0]
        if parts.notna().all():
            return parts.astype(float).to_numpy()
        inner = texts.str.extract(r"^[\[(](.*)[\])]$")[0]
        if inner.isna().any():
            return None
        values = np.array([*inner.str.split(","), None], object)[:-1]
    if not all(isinstance(value, list | tuple) and len(value) for value in values):
        return None
    try:
        lists = [tuple(float(element) for element in value) for value in values]
    except (TypeError, ValueError):
        return None
    ranks = {value: float(number) for number, value in enumerate(sorted({*lists}), 1)}
    return np.array([ranks[value] for value in lists])


def label_of_value(value: object) -> str:
    """Return a logged value as the user writes it in an option: 1 for 1.0."""
    return as_text(as_setting(value))


def as_setting(value: Any) -> Any:
    """Return a value as a settings file has it: whole numbers as integers, text of a number as the number."""
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if not isinstance(value, str):
        return value
    for kind in (int, float):
        try:
            number = kind(value)
        except ValueError:
            continue
        if str(number) == value:
            return number
    return value
