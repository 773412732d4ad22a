"""One file a command; `cli` assembles them."""
