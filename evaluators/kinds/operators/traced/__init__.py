"""The mapping of a trace's layers to operators of the table, with one module per framework."""
