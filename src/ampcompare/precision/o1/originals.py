"""The functions of `torch.nn.functional` without O1's casts, under their own names.

Pickle saves a function by module and name. A function that a layer took before O1 wrapped `torch.nn.functional`
is no longer found there, and is saved as one of this module while the wrappers are installed.
"""

from typing import Any

from ampcompare.precision.o1 import patches


def __getattr__(name: str) -> Any:
    return patches.find_original(name)
