"""Reports of stored evaluations: the commands of ``agent info evaluation``."""
