"""What others have published, each with its source and the setting that repeats it: `configs/published/`.

A publication is one file (`publication.py`), its figures as they were printed (`printed_value.py`). Loads
neither torch nor the report's libraries: a run takes its setting from here, the report its figures.
"""
