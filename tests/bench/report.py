"""report.py: the parts of their command lines that the benchmarks have in common: help text and option --json."""
import json


def description(doc):
    """The text of --help: a program's docstring without its name and its usage."""
    text = doc.partition(": ")[2].strip()
    return text[0].upper() + text[1:]


def add_option(parser):
    parser.add_argument("--json", help="write the figures to this file")


def write(o, figures):
    """Writes the figures to the file that --json names. Does nothing without --json."""
    if not o.json:
        return
    with open(o.json, "w", encoding="utf-8") as f:
        json.dump(figures, f, indent=1)
        f.write("\n")
