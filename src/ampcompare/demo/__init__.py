"""`ampcompare demo`: three short trainings of ResNet50 and their comparison, in minutes on any machine."""
