"""Open a model that is in use, predict a file with it, score it on the present rows, and serve it over HTTP."""
