"""Diagnostics of a step: gradients, activations, weight updates."""
