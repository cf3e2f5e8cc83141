"""The digits to which values were rounded when they were logged."""

import numpy as np

MAX_DECIMALS = 6  # a value with more decimals was not rounded when it was logged
FLOAT32 = 2.0**-24  # relative error of a value that was stored as float32, as TensorBoard does
# In the summary of a run of another program: the relative resolution of its speed, as a fraction.
THROUGHPUT_RESOLUTION = "ampcompare/throughput_resolution"


def count_decimals(values: np.ndarray) -> int | None:
    """Return the number of decimals to which all values were rounded; None if they were not."""
    if not len(values):
        return None
    for decimals in range(MAX_DECIMALS + 1):
        if (np.abs(values - np.round(values, decimals)) <= FLOAT32 * np.abs(values)).all():
            return decimals
    return None


def relative_resolution(values: np.ndarray, differences: np.ndarray | None = None) -> float:
    """Return the smallest relative difference between two logged values; 0 if they were not rounded.

    Args:
        values: The values as they were logged. Only finite values above 0 count.
        differences: The differences of which rates are made, where the values are a clock.
    """
    values = values[np.isfinite(values) & (values > 0)]
    decimals = count_decimals(values)
    if decimals is None:
        return 0.0
    sizes = values if differences is None else differences[differences > 0]
    return 10.0**-decimals / float(np.median(sizes)) if len(sizes) else 0.0
