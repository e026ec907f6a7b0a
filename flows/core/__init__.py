"""What every floor above reads: params.yaml, plugin files, search spaces, and the terminal."""
