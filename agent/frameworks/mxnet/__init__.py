"""MXNet: its predictor, its trainer and its profiler; nothing else imports it."""
