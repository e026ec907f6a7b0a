"""The one exception that the screen shows without a traceback."""


class UserError(Exception):
    """A user's mistake: the message says what was wrong, where (file, key, client), and the way out."""
