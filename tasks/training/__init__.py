"""Train what is not a plain local epoch: trees, personal layers, control variates, sites, gradients, running statistics."""
