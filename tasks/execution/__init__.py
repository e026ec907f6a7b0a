"""Make functions steps, and run them on workers."""
