"""Limits of numbers in params, beyond which no run ends or fits. Nothing is imported: `siloflow --help` reads them."""

SEED = 2**63 - 1  # the range of databases and JSON readers
TIMES = 10**9  # rounds, epochs, rows of one client: loops end, and products stay below 2^63
CLIENTS = 10**7
SIDE = 10_000  # pixels
WIDTH = 10**7  # outputs of a layer
CHANNELS = 10**5
LAYERS = 100
COPIES = 1_000  # networks of an ensemble
PASSES = 10**5
MAX_REAL = 1e9  # rates, weights, deviations: squares and products stay finite in float32
VALUE = 3.4e38  # of a row: within the range of float32
CLIP = 1e-6  # the shortest norm of a gradient: squares of shorter ones are 0 in float32
EPSILON = 0.01  # the least of differential privacy: with less, noise exceeds realistic row counts many times
SMALLEST = 1e-9  # of a divisor
TURN = 3600.0  # degrees
