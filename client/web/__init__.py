"""The page of evaluations: one file that ``agent report`` writes, and the server of ``agent web``."""
