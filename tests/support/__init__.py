"""What several tests need: a relay under a real uvicorn, and a client on a raw socket."""
