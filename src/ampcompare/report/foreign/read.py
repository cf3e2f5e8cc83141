from ampcompare.report.foreign.reading import Reading, Wanted, read

__all__ = ["Reading", "Wanted", "read"]
