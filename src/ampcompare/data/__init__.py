"""Data sources, and loaders that bring their batches to the device."""
