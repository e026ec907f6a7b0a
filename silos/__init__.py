"""The data: clients, their rows and versions, and what they report."""
