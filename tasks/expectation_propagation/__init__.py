"""Steps of a method whose clients each keep a factor of the posterior, their site."""
