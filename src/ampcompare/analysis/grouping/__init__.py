"""From runs to groups: one table row per run, and repeats pooled into groups."""
