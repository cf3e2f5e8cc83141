"""A training run on fake CUDA tensors, without a GPU.

It shows what would wait for a GPU, fail in a capture, or launch a kernel.
"""
