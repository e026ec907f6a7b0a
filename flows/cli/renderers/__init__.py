"""What commands print: an answer of a verb as tables and sentences."""
