"""`ampcompare why diff`: where two backends and fp64 part within a training step, module by module.

A step is looked at (`look.py`, by the hooks of `calls.py`) under fp64 arithmetic (`arithmetic.py`) and under
each backend; `alone.py` runs every module once more by itself, on fp64's own inputs, so that an error is
booked where it arises and not where it arrives. `measures.py` compares tensors, `compare.py` puts a line for
each module together, `drift.py` follows the weights over several steps. `answer.py` is all that came of it,
which `table.py` with `words.py`, `picture.py` and `as_json.py` show; `command.py` does what the command line
asks.
"""
