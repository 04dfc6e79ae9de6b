"""The contract: slots, transitions, memory layout, traces, policy, scenario and metrics, one copy each."""
