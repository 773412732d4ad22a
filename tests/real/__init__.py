"""Tests against real llama-servers, and the installer that gets them from the Python index."""
