"""A stand-in for W&B's server on loopback: client, command line and API work with it unmodified.

Tests use `Server` of `server.py`. The state is in memory (`store.py`). A GraphQL query is parsed, and its
selection set is answered by field name, with null for an unknown name (`graph.py`). So the server need not
know the client's queries.
"""

from support.wandb_server.server import API_KEY, ENTITY, TROUBLES, Server
from support.wandb_server.store import Run, Sweep

__all__ = ["API_KEY", "ENTITY", "TROUBLES", "Run", "Server", "Sweep"]
