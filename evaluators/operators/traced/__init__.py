"""What the layers of a trace are in the table of operators, framework by framework."""
