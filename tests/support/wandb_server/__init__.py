"""A stand-in for W&B's server, for tests: the unmodified client, command line and API work against it on
loopback.

`Server` in `server.py` is what a test holds. State is in memory (`store.py`); a GraphQL query is
parsed and its selection set answered by field name, null where a name is unknown (`graph.py`), so that no
query of the client has to be known here.
"""

from support.wandb_server.server import API_KEY, ENTITY, TROUBLES, Server
from support.wandb_server.store import Run, Sweep

__all__ = ["API_KEY", "ENTITY", "TROUBLES", "Run", "Server", "Sweep"]
