"""Room for what others have published: figures, each with its source and the setup that repeats it.

Nothing lives here yet. `report` and `bench` will read from it, so that it may import the ground floor alone
(`errors`, `metrics`), and loads no torch.
"""
