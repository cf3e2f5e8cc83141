"""Room for one's own training loop: what it calls to be recorded, measured and compared
as ours is.

Nothing lives here yet. It may import what a run is made of (`train`, `checkpoint`, `tracking`, `machine`,
`measure`, `precision`, `config`), not `experiment`, which runs our own loop.
"""
