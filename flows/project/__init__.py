"""Opens a project: typed params, checked data, the places of its runs, and what its methods train with."""
