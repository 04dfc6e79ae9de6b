"""What clients ask for: arrival processes, length distributions and request traces of every dialect."""
