"""The authors' code where it differs from their text, and oracles that know more than a method can."""
