"""MLPerf's scenarios, run by LoadGen."""
