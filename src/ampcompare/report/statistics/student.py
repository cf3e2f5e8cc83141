"""Student's t and chi-squared. From `scipy.special`, as `scipy.stats` takes a second to import."""

from __future__ import annotations


def t_quantile(probability: float, df: float) -> float:
    """Quantile of Student's t."""
    from scipy.special import stdtrit

    return float(stdtrit(df, probability))


def t_tail(t: float, df: float) -> float:
    """P(T > t) of Student's t."""
    from scipy.special import stdtr

    return float(stdtr(df, -t))


def chi_squared_quantile(probability: float, df: float) -> float:
    """Quantile of the chi-squared distribution."""
    from scipy.special import gammaincinv

    return 2 * float(gammaincinv(df / 2, probability))


def t_power(shift: float, df: float, limit: float) -> float:
    """P(T > `limit`) of the non-central t, whose truth lies `shift` standard errors above the null."""
    from scipy.special import nctdtr

    return 1 - float(nctdtr(df, min(shift, 100.0), limit))  # further away it is 1 but where `limit` is too
