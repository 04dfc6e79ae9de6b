"""From measured runs to the profiles of a twin: pure fits, and the files that they are written to."""
