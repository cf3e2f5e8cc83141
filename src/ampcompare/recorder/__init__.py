"""Record your own training loop in the format of our runs: `from ampcompare import Recorder`.

`lightning` and `transformers` have callbacks for these libraries. Each is imported only by its users.
"""
