"""Every numba function. No file here calls functions of another: numba's cache would not see edits there."""
