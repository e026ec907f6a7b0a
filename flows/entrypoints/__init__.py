"""How flows are started besides the command: from Python, and from a deployment's form; what a verb is in all of them."""
