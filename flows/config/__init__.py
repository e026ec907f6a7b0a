"""params.yaml: its schema, how it is loaded and overridden, and the messages of what is wrong in it."""
