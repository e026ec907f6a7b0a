"""Prefect's and MLflow's local servers: start, find and stop them."""
