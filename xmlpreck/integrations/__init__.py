"""xmlpreck within other tools."""
