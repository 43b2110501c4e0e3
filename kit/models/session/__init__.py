"""A session: passes over a cache, runs, steps, generation."""
