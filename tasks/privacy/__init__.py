"""Training with differential privacy at the clients: noise, secure sums, and what they cost on each client's ledger."""
