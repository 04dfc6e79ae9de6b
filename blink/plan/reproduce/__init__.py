"""`blink reproduce`: the published facts, the runs behind them, what the twin makes of them, and how far off it is."""
