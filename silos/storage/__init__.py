"""How silos lie on disk: the manifest, its columns, and the files of rows."""
