"""W&B's client, file format and record protocol, as far as reading and writing runs needs them."""
