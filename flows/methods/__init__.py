"""Federated learning methods, one a module; the module's name is the method's name."""
