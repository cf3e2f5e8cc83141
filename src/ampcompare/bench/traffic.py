"""`per_image` under the path that the documentation had for it."""

from ampcompare.bench.throughput.traffic import per_image

__all__ = ["per_image"]
