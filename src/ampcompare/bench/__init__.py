"""`ampcompare bench`, trainings that take turns, and `ampcompare doctor`."""
