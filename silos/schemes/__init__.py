"""How rows become clients."""
