"""The frontend and the ring on two hosts, joined by one-sided verbs through pyverbs."""
