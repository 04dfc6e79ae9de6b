"""The verbs of the command line, one thin file each: `add` declares options, `execute` returns the exit code."""
