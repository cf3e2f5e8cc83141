"""Read runs under one vocabulary: our own as they record themselves, others as the user describes them.

Our own runs need no options. For any other log the user names what is compared, the metric with its direction
and, if wanted, throughput or time, and memory. Nothing is decided by what a name looks like. What is missing
is asked for (`questions`).
"""
