"""Room for why a comparison came out so: what bounds a step and in which types its ops run (explain), where
two backends differ after a step (diff), which layer overflows (guard).

Nothing lives here yet. It may import what a run is made of and `report`, not `bench`, its neighbour;
it loads torch, so nothing that reads records may import it.
"""
