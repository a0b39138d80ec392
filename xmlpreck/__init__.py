"""xmlpreck: extreme multi-label classification trained for the k labels at the top."""

__version__ = "0.1.0"
