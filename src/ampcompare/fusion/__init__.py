"""`fuse=true`: what a step does in several launches and passes over memory that one could do. Same numbers.

BatchNorm, ReLU and the sum of a residual are one pass (`norm_relu`), BatchNorm's counters one launch
(`modules`). What a backend fuses of its own (casts, unscaling) is in `ampcompare.precision`.
"""
