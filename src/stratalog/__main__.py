"""The program `stratalog`, also as `python -m stratalog`: the command line."""

from stratalog.cli.starting import end_at_ctrl_c


def main() -> None:
    """Run it. What it needs is imported where Ctrl-C ends it."""
    end_at_ctrl_c()
    from stratalog.cli.main import main as run

    run()


if __name__ == "__main__":
    main()
