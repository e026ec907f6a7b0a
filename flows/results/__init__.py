"""What is made of finished runs: reports, their history, registered models, and models in use."""
