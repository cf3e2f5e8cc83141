"""Benchmarks that users run: `ampcompare bench ...`. Each measurement has a process, hence an allocator, of
its own.
"""
