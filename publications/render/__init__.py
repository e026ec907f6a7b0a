"""What is written from the records of published tables: the list of them all, and the tables of docs/."""
