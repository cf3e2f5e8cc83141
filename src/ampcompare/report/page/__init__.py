"""The HTML page of a report: template, style, script, and the code that renders them."""
