"""What decides a training, and for which purpose two trainings must agree in what. Imports no torch."""
