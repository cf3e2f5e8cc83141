"""A training loop of one's own, recorded and compared as ours is: `from ampcompare import Recorder`.

`lightning` and `transformers` here are thin adapters to these libraries, imported by who has them.
"""
