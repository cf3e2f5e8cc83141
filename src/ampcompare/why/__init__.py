"""Explain the result of a comparison, step by step and module by module.

`explain` compares what a step costs under two backends, and the dtypes in which its ops run. `diff` measures
where a backend departs from fp32. `guard` searches for the modules that must stay in fp32.

All three build the training as a run does. The package imports torch, so no package that reads records may
import it.
"""
