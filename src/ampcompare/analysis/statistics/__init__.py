"""Statistics of the comparison: estimates, intervals, equivalence, multiplicity."""
