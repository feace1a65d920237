"""The version of onepass, and of its results."""

__version__ = "0.1.0"

RESULTS_VERSION = 1
"""Raised whenever the mathematics or a default changes, so that old records are never mistaken for new ones."""
