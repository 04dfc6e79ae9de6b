"""Capacity: the cheapest fleet that carries a traffic within its objectives, proven by bounds and by simulation."""
