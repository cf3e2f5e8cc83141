"""Render an analysis as page, charts, tables, text, exports or W&B workspace; compute no statistics."""
