"""An apex-shaped module, so that a script changes one line: `from ampcompare.precision.apex import amp`."""
