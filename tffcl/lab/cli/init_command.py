"""`tffcl init`: a commented task file to start from."""

import pathlib

from tffcl.errors import UserError


def add_init(parser):
    """Adds the options of `tffcl init`."""
    parser.add_argument(
        "file", nargs="?", default="my_task.toml", metavar="FILE", help="a new file (default: %(default)s)"
    )


def init(options):
    """Writes the file, and says what to do with it."""
    target = pathlib.Path(options.file)
    if target.suffix != ".toml":
        raise UserError(f"{target} is no name of a task file; it must end in .toml")
    if not str(target).isprintable():
        raise UserError(f"{str(target)!r} is no name of a task file; it has characters that cannot be written in one")
    template = pathlib.Path(__file__).with_name("new_task.toml").read_text(encoding="utf-8")
    target.parent.mkdir(parents=True, exist_ok=True)
    try:
        with open(target, "x", encoding="utf-8") as file:
            file.write(template.format(name=target))
    except FileExistsError:
        raise UserError(f"{target} is there already; give another name, and it stays as it is") from None
    print(f"written: {target}\nnext: tffcl show {target}; tffcl similarity {target}; tffcl compare {target}")
