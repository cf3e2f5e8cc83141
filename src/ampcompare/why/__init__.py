"""Room for questions to recorded runs: why they came out so (explain), what differs between two (diff),
whether a new one is worse than those before (guard).

Nothing lives here yet. It may import `records`, `report` and what lies below them, and loads no torch.
"""
