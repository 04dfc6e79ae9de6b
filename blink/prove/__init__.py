"""The slot protocol as a small explicit-state model, searched exhaustively, and its mutants."""
