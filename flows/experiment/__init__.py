"""Holds what a run needs: its project, setup, trainer, callbacks and folder."""
