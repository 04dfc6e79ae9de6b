"""Several replicas of the twin on one clock, behind a router."""
