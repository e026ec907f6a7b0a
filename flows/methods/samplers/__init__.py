"""Samplers of clients and the state that they keep from round to round."""
