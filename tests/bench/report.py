"""report.py: what the benches write where --json says."""
import json


def add_option(parser):
    parser.add_argument("--json", help="write the figures to this file")


def write(o, figures):
    if not o.json:
        return
    with open(o.json, "w", encoding="utf-8") as f:
        json.dump(figures, f, indent=1)
        f.write("\n")
