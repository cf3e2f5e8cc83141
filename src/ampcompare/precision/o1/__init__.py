"""The casts of apex's level O1 on today's PyTorch: lists of functions, a rule for each, and how they come in
force.

Source: NVIDIA/apex as of its last commit with `apex.amp` (removed 2025-05-08 in cb65b8ed). Behaviour is
reproduced, faults that the specification names are mended; no code is copied.
"""
