"""Types of the JSON that a command returns, prints with --json and writes into runs/: one file for each kind of result."""
