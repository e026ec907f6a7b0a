"""Steps of a diagnosis: reports of clients, and their comparison on the server."""
