"""The discrete-event model of the whole system on SimPy, in integer nanoseconds of virtual time."""
