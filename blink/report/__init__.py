"""What a person reads after a run: run directories, tables, figures."""
