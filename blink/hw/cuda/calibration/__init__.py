"""A measured programme on a GPU, from which a twin's profiles are fitted."""
