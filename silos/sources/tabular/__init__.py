"""The source `table`: CSV and Parquet files of the user's own."""
