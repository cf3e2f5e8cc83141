"""Sources of data, and batches of them on the device: images as bytes, tensors, whatever a loader gives."""
