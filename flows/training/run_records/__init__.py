"""What a run writes about itself: its folder, its fingerprint, the record of a round, figures, and what MLflow gets."""
