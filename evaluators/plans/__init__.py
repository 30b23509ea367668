"""Plans of experiments: many cells that are described once, run anywhere, resumed and compared."""
