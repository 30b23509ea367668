"""Plans of experiments: many cells, described once, run anywhere, resumed and compared."""
