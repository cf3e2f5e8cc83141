"""Published comparisons, each with its source and the setting that repeats it: `configs/published/`.

A publication is one file (`publication.py`) with values as they were printed (`printed_value.py`). This
package imports neither torch nor the libraries of the report: a run takes its setting from a publication, the
report its values.
"""
