"""`python -m udjfl` is the command line."""

from udjfl.cli.main import main

if __name__ == "__main__":
    main()
