"""Where the package reports what happens: the meter that counts, and the waits that tracers read."""
