"""`python -m stratalog`: the command line, where its script is not on the path."""

from stratalog.cli.main import main

if __name__ == "__main__":
    main()
