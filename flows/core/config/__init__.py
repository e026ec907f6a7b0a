"""Holds the schema of params.yaml, its loading and overrides, and the messages for invalid params."""
