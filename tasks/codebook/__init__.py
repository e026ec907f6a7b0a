"""Codewords of a client, open to be changed, and the tokens of its rows: their centres, and where they lie."""
