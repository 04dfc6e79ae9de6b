"""The twin against the hardware: a measured run beside a predicted one, where they differ, and which part errs."""
