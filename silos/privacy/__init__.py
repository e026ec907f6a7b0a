"""What clients remember, outside any run, of what they told of their rows; and when they tell no more."""
