"""The casts of apex's level O1 on current PyTorch: lists of functions, a rule for each, and their wrappers.

Source: NVIDIA/apex at its last commit with `apex.amp` (removed 2025-05-08 in cb65b8ed). The behaviour is
reproduced, without the faults that the specification names; no code is copied.
"""
