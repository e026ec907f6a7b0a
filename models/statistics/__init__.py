"""What a client's own rows say of their distribution."""
