"""What clients tell of their rows: what they are asked, counts and moments, noise, and what stands for a picture."""
