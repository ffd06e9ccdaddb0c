"""`python -m hexgraft.host.cli`: the command line without its script."""

from hexgraft.host.cli.main import main

if __name__ == "__main__":
    main()
