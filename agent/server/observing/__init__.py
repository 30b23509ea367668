"""What an agent tells of itself while it runs: metrics, log lines, its status, and predictions that hang."""
