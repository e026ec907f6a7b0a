"""Pages that are told what no method can know, so that the others can be measured against them."""
