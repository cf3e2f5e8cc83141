"""The holes of a sweep: points that are missing, failed or crashed, listed and filled."""
