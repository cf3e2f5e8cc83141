"""What a run measures beside its loss: step times, memory, energy, the range of its gradients."""
