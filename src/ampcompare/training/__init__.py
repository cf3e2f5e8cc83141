"""The training step, the loop over steps and epochs, and what is logged of them."""
