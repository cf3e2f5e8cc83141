"""Publications of simulated runs with known truth: an exact one is seldom refuted, a doctored one is."""

import numpy as np
import pandas as pd
import pytest

from ampcompare.analysis.reproduction import REFUTED, AssessedValue, Relation, assess_values
from ampcompare.analysis.statistics.equivalence import PublishedEstimate
from ampcompare.analysis.statistics.mean_difference import estimate_difference
from ampcompare.publications.printed_value import PrintedValue
from ampcompare.publications.publication import PublishedMetric
from ampcompare.runtime import formatting

PAGES = 80
ARMS = (1.6, 1.9, 2.3)  # times as fast as the baseline
SPEEDS = PublishedMetric.model_construct(name="speed", measured="images_per_second", values={})
RATIO = Relation("speed-up", formatting.ratio, is_ratio=True)


def page(rng, n, noise, doctored=1.0):
    """Return the verdicts on the speed-ups of three arms.

    `n` measured runs are compared with one published run, printed to three digits.
    """

    def times(speed, sd):
        values = 100 * speed * np.exp(rng.normal(0, sd, n + 1))
        return pd.Series(values[:-1]), PrintedValue.model_validate(f"{values[-1]:.3g}")

    (base, base_printed), rows = times(1.0, noise[0]), []
    for number, speed in enumerate(ARMS):
        own, printed = times(speed, noise[-1])
        ends = (
            printed.value / base_printed.value,
            printed.low / base_printed.high,
            printed.high / base_printed.low,
        )
        published, measured = (
            PublishedEstimate(*(doctored * end for end in ends)),
            estimate_difference(own, base, log=True, paired_by=""),
        )
        rows.append(AssessedValue(SPEEDS, f"arm {number}", RATIO, "", published, measured))
    return [row.verdict for row in assess_values(rows, 0.1, 0.5)]


@pytest.mark.parametrize(("n", "noise"), [(3, (0.15, 0.05)), (5, (0.02,))])
def test_an_exact_publication_is_refuted_in_about_one_of_twenty_at_most(n, noise):
    """Also where the noise is beyond the margin, or an arm varies three times as much as the other."""
    rng = np.random.default_rng([n, *(int(1000 * one) for one in noise)])
    pages = [page(rng, n, noise) for _ in range(PAGES)]
    # Two binomial errors above one in twenty.
    assert np.mean([REFUTED in verdicts for verdicts in pages]) <= 0.1
