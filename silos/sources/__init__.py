"""The sources of rows."""
