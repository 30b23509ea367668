"""How well figures are known: intervals of times in a row, how long to measure, and groups of processes."""
