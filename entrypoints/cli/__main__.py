"""`python -m hexpo.entrypoints.cli`."""

from hexpo.entrypoints.cli.main import main

if __name__ == "__main__":
    main()
