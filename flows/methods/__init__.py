"""One page a method; a file's name is the method's name."""
