"""Every numba function. Compile with `caching.kernel`; files of this folder import only each other."""
