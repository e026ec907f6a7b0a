"""The server groups clients by what they sent."""
