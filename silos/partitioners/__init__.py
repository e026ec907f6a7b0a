"""The steps that make clients of rows."""
