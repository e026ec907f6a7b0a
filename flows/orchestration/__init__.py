"""Prefect around the flows: the decorator of a flow, what its parameters may set, and the local servers."""
