"""Render an analysis: a page, charts, tables, text, exports, a workspace on W&B. Computes nothing."""
