"""Reports as one HTML file that needs no other file and no network; kinds.py says of what."""
