"""Create a project folder with a params.yaml that fits the data, for `siloflow init`."""
