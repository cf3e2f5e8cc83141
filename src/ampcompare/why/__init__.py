"""Why a comparison came out so: what bounds a step and in which types its ops run (`explain/`), where two
backends differ after a step (`diff/`), which modules must stay in fp32 (`guard/`).

`commands` is the command line of all three; `ready` builds the training that they look at. It may import what
a run is made of and `report`, not `bench`, its neighbour; it loads torch, so nothing that reads records may
import it.
"""
