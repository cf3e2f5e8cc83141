"""`ampcompare bench throughput`."""

BASELINE = "none"  # what speed-ups are against
HAND_WRITTEN = (BASELINE, "native", "native_bf16")  # the backends of the loops written by hand
