"""The options of a run: declaration, composition and checks."""
