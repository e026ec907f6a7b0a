"""Models in use: opening one, predicting a file, scoring it on the present rows, and serving it over HTTP."""
