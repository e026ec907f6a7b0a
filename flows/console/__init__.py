"""The terminal and Prefect's own server around one command."""
