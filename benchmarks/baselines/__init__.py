"""What `siloflow bench` measures against, each a program of its own: FOLDER of silos, JSON of the workload."""
