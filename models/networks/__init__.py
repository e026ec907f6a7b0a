"""Networks that any method may train."""
