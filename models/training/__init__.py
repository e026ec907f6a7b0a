"""The engine that trains a stack of clients, and what it is given: batches, objectives, optimisers."""
