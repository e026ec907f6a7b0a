"""What `siloflow init` makes: a project folder with a params.yaml that fits the data."""
