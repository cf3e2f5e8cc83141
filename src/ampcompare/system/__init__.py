"""The machine: device, processes of a distributed training, recorded environment, dtype throughput."""
