"""Networks that belong to one method."""
