"""`ampcompare bench` and `ampcompare doctor`: speed and memory of a step, and what this machine can do."""
