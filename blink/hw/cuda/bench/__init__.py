"""What the scheduler's loop costs on this GPU, and what a host loop over the same graphs costs beside it."""
