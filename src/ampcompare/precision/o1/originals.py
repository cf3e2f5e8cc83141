"""The functions of `torch.nn.functional` without O1's casts, under their own names.

Pickle saves a function by module and name. A function that a layer took before O1's wrappers were installed
is no longer found in `torch.nn.functional`. Meanwhile it is saved as a function of this module.
"""

from typing import Any

from ampcompare.precision.o1 import patches


def __getattr__(name: str) -> Any:
    return patches.find_original(name)
