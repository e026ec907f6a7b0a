"""What results are worth: measures, uncertainty, differences."""
