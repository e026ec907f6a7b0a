"""The report of a comparison or of a diagnosis as one HTML file, to hand on."""
