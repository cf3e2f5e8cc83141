"""A training run on fake CUDA tensors: what would wait for a GPU, fail in a capture, or launch, without
one."""
