"""The comparison of runs as a page, charts, tables and a verdict. Reads records; never imports torch."""

from ampcompare.report.analysis.analysis import analyse_runs

__all__ = ["analyse_runs"]
