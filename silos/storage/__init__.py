"""The silos on disk: the manifest, its columns, and the files of rows."""
