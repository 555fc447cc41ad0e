"""The command's entry: which commands there are, and how errors leave it.

Exit codes: 0 done, 1 a problem was found or the work failed, 2 the command was called in a wrong way, 3 (`put`) put
after damage that RocketMQ may end the log at, 4 done, but standard output did not take the result.
"""

import logging
import os
import sys
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from stratalog import __version__
from stratalog.cli import dump, inspect, offload, put, read, repair, sql, verify
from stratalog.cli.demo import command as demo
from stratalog.cli.output import complain
from stratalog.cli.starting import INTERRUPTED, raise_at_ctrl_c
from stratalog.cli.streams import OutputLost, discard_output, end_without_output, flush_output, open_streams
from stratalog.errors import NOTHING_DONE, ConfigurationError, NotInstalled, StratalogError, given_options
from stratalog.store.os_errors import is_no_thread, next_step

PROGRAM = "stratalog"
"""However it was called: shell completion is looked up by this name."""
FAILED, WRONG_CALL = 1, 2


class Commands(TyperGroup):
    """Turns every error into one sentence on stderr and an exit code: no traceback reaches a person."""

    def invoke(self, ctx: Any) -> Any:
        try:
            raise_at_ctrl_c()
            return super().invoke(ctx)
        except ConfigurationError as error:
            _complain_of(error, str(error))
            raise typer.Exit(FAILED if isinstance(error, NotInstalled) else WRONG_CALL) from None
        except StratalogError as error:
            _complain_of(error, str(error))
        except BrokenPipeError:  # whoever read our output has seen enough
            discard_output()
            raise typer.Exit(0) from None
        except OutputLost as error:
            raise end_without_output(error) from None
        except OSError as error:
            place = f"{error.filename}: " if error.filename else ""
            _complain_of(error, f"{place}{error.strerror or error}; {next_step(error)}")
        except MemoryError as error:
            _complain_of(error, "memory is short: free some, or raise the limit (ulimit -v)")
        except RuntimeError as error:
            if not is_no_thread(error):
                raise
            _complain_of(error, "no thread can be started: free memory, or raise the limits (ulimit -v, ulimit -u)")
        except ImportError as error:
            package = (error.name or "").partition(".")[0]
            if package == "stratalog":
                raise
            _complain_of(error, f"{error}. What this command needs comes with: pip install 'stratalog[spark]'")
        except KeyboardInterrupt as error:
            _complain_of(error, "stopped")
            raise typer.Exit(INTERRUPTED) from None
        finally:
            given_options.clear()
        raise typer.Exit(FAILED)

    def list_commands(self, ctx: Any) -> list[str]:
        return list(self.commands)


def _complain_of(error: BaseException, text: str) -> None:
    """Say it, with what the command noted of what it did."""
    notes = getattr(error, "__notes__", ())
    complain(". ".join([NOTHING_DONE.sub("", text), *notes]) if notes else text)


def _examples(text: str) -> str:
    return "\b\nExamples:\n" + "\n".join(f"  {line}" for line in text.strip().splitlines())


app = typer.Typer(
    cls=Commands,
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
)
app.command("demo", epilog=_examples(demo.EXAMPLES))(demo.demo)
app.command("put", epilog=_examples(put.EXAMPLES))(put.put)
app.command("get", epilog=_examples(read.GET_EXAMPLES))(read.get)
app.command("query", epilog=_examples(read.QUERY_EXAMPLES))(read.query)
app.command("tail", epilog=_examples(read.TAIL_EXAMPLES))(read.tail)
app.command("inspect", epilog=_examples(inspect.EXAMPLES))(inspect.inspect)
app.command("dump", epilog=_examples(dump.EXAMPLES))(dump.dump)
app.command("verify", epilog=_examples(verify.EXAMPLES))(verify.verify)
app.command("repair", epilog=_examples(repair.REPAIR_EXAMPLES))(repair.repair)
app.command("rebuild", epilog=_examples(repair.REBUILD_EXAMPLES))(repair.rebuild)
app.command("offload", epilog=_examples(offload.EXAMPLES))(offload.offload)
app.command("sql", epilog=_examples(sql.EXAMPLES))(sql.sql)


def _show_version(asked: bool) -> None:
    if asked:
        print(f"stratalog {__version__}")
        raise typer.Exit


@app.callback(epilog=_examples("stratalog demo --dir demo-data\nstratalog put --help"))
def stratalog(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Apache RocketMQ's message store and tiered store in Python, on the same bytes."""


def main() -> None:
    """Run the command line. No file that it or a child of it creates may be written to by others."""
    os.umask(os.umask(0o022) | 0o022)
    logging.getLogger("stratalog").addHandler(logging.NullHandler())  # commands say by themselves what a store logs
    open_streams()
    try:
        try:
            app(prog_name=PROGRAM)
        except SystemExit:
            flush_output()
            raise
    except OutputLost as error:  # while help is shown, or only as the rest is written
        sys.exit(end_without_output(error).exit_code)
    except KeyboardInterrupt:  # while the last of the output is written
        complain("stopped")
        discard_output()
        sys.exit(INTERRUPTED)


if __name__ == "__main__":
    main()
