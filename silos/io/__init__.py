"""Files, memory, locks between processes, and proxies."""
