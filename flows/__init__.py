"""What runs: Prefect flows, and the command `siloflow` as a thin face on them."""
