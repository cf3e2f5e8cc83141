"""apex.amp's semantics on today's PyTorch: the O1 casts, its loss scaler, O2, and an apex-shaped module.

Source: NVIDIA/apex as of its last commit with `apex.amp` (removed 2025-05-08 in cb65b8ed). Behaviour is
reproduced, faults that the specification names are mended; no code is copied.
"""
