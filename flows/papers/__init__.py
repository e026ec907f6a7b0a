"""Published tables as data: numbers, units, sources, known errors, and the params that repeat them."""
