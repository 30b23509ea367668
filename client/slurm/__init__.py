"""``agent slurm``: job scripts for clusters that run Slurm."""
