"""Steps of a diagnosis: what each client tells of its rows, and what the server finds in it."""
