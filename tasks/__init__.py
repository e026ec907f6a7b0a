"""One step of the work as a Prefect task; a task works on a cohort and answers with typed messages."""
