"""Which kind of shift two clients differ by, from counts and moments that they sent."""
