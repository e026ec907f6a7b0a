"""Define what may leave a client: the records of this folder, and nothing else."""
