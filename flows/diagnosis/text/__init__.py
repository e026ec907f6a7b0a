"""The text of a diagnosis, sentences, table and notes, made from a report alone."""
