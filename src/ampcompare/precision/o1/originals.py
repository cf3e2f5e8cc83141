"""The functions of `torch.nn.functional` without O1's casts, under their own names.

Pickle saves a function by module and name. While O1's wrappers are installed, a function that a layer holds
is not the one in `torch.nn.functional`, so pickle saves it as a function of this module.
"""

from typing import Any

from ampcompare.precision.o1 import patches


def __getattr__(name: str) -> Any:
    return patches.find_original(name)
