"""Process behaviour: signals, startup, console, log messages, files, and text formatting."""
