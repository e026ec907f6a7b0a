"""Programs that `siloflow bench` measures against; each gets a folder of silos and the JSON of the workload."""
