"""Carry signed messages of bytes between a coordinator and its places: envelopes, planes, sessions and a broker."""
