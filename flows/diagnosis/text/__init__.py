"""What a diagnosis says: sentences, the overview and the notes below it, made of a report alone."""
