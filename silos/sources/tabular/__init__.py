"""The source `table`: a user's CSV and Parquet files."""
