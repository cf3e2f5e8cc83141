"""How runs are read: our own by what they record, other programs' by what the user names.

A run of our own needs no options. Of any other log the user names what is compared, the metric with its
direction and, if wanted, throughput or time, and memory. Nothing is decided by the look of a name; what is
missing is asked for (`questions`).
"""
