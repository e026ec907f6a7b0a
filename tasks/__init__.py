"""Hold the steps of the work as Prefect tasks; a task works on a cohort and returns typed messages."""
