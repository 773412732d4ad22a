"""`python -m adaptive_dd` is `adaptive-dd`."""

from adaptive_dd.cli import main

if __name__ == "__main__":
    main()
