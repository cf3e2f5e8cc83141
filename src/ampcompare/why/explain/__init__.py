"""What a training step does inside, before it is run: in which types, in how much memory, in how long.

`setting` builds the training as a run does, on tensors without data (`stage`); `trace` notes each op of a
step, where it came from and what it holds in memory, and `reasons` why it ran in its type. `census`, `memory`
and `time` sum that up, the last against `rates` measured here or of a device in `published.devices`;
`as_json`, `table` and `command` show it.
"""
