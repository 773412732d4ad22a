"""The functional core: pure functions of values. No clock, socket, file, log, global or hidden randomness."""
