"""The largest numbers that params take: beyond them nothing ends or fits, and nobody means them."""

SEED = 2**63 - 1  # what databases and JSON's readers hold
TIMES = 10**9  # rounds, epochs, rows of one client: loops end, products stay below 2^63
CLIENTS = 10**7
SIDE = 10_000  # pixels
WIDTH = 10**7  # numbers that a layer gives
CHANNELS = 10**5
LAYERS = 100
COPIES = 1_000  # networks beside each other
PASSES = 10**5
MAX_REAL = 1e9  # rates, weights, deviations: their squares and products stay numbers in float32
VALUE = 3.4e38  # of a row: float32 holds it
EPSILON = 0.01  # of differential privacy, the least: with less, noise is many times the rows that anybody has
SMALLEST = 1e-9  # of what is divided by
TURN = 3600.0  # degrees
