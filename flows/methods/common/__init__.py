"""What several pages of methods share."""
