"""Write to the user's terminal: progress, safe text, and signals from the keyboard."""
