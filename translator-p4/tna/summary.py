#!/usr/bin/env python3
"""Takes what is committed out of the outputs of the Tofino compiler.

    summary.py OUTPUTS FOLDER NAME

FOLDER gets `bfrt.json`, the assembly (`NAME.bfa.gz`) and `resources.json`: of each stage and table, what it takes of the
chip. Nothing in them says where or when they were made.
"""

import collections
import gzip
import json
import pathlib
import re
import sys

# Stages of Tofino 1.
STAGES = 12

# What a stage of Tofino 1 has: the field of the compiler's log, the list in it, and how many there are.
KINDS = {
    "sram": ("rams", "srams", 80),
    "map_ram": ("map_rams", "maprams", 48),
    "tcam": ("tcams", "tcams", 24),
    "stateful_alu": ("meter_alus", "meters", 4),
    "statistics_alu": ("statistic_alus", "stats", 4),
    "logical_table": ("logical_tables", "ids", 16),
    "gateway": ("gateways", "gateways", 16),
    "hash_bit": ("hash_bits", "bits", 416),
    "hash_distribution": ("hash_distribution_units", "units", 6),
    "crossbar_byte": ("xbar_bytes", "bytes", 194),
}


def users(unit):
    """The tables that take a unit."""
    names = {unit.get("table_name"), unit.get("used_by_table")}
    names |= {usage.get("used_by") for usage in unit.get("usages", [])}
    return names - {None, ""}


def gresses(assembly):
    """Tables of the assembly, by name: `ingress` or `egress`. Those of the program begin with its control."""
    gress, of = None, {}
    for line in assembly:
        if stage := re.match(r"stage \d+ (ingress|egress):", line):
            gress = stage[1]
        elif gress and (table := re.match(r"  (?:\w+ )?([^\s:]+)(?: \d+)?:", line)):
            of.setdefault(table[1], gress)
        elif gress and (inner := re.match(r"    +(?:name|\w+): ([^\s:]+)$", line)):
            of.setdefault(inner[1], gress)
    return of


def undecided(assembly):
    """States of the parsers that go several ways and compare nothing."""
    parser, state, ways = None, None, collections.defaultdict(list)
    for line in assembly:
        if not line.startswith(" "):
            parser = line.strip() if line.startswith("parser ") else None
        elif parser and (name := re.match(r"    ([^\s#].*):$", line)):
            state = f"{name[1]} of {parser.rstrip(':')}"
        elif parser and (way := re.match(r"      (match|\*|0[xob][^:]*):", line)):
            ways[state].append(way[1])
    return [state for state, those in ways.items() if len(those) > 1 and "match" not in those]


def main(outputs, folder, program):
    outputs, folder = pathlib.Path(outputs), pathlib.Path(folder)
    (assembly,) = outputs.glob("**/*.bfa")
    # The run has a number of its own each time.
    lines = [line for line in assembly.read_text().splitlines(keepends=True) if not line.startswith("  run_id:")]
    if lost := undecided(lines):
        sys.exit(
            f"the parser compares nothing in {', '.join(lost)}, and each packet would take the first way: "
            "compile with a p4c that has the fix of p4lang/p4c#5753"
        )
    gress_of = gresses(lines)

    def gress(name):
        controls = {"Admission": "ingress", "Departure": "egress", "Arrival": "ingress"}
        return controls.get(name.split(".")[0]) or gress_of.get(name.split("$")[0], "both")

    (log,) = outputs.glob("**/resources.json")
    with open(log) as file:
        mau = json.load(file)["resources"]["mau"]
    stages, tables = [], collections.defaultdict(collections.Counter)
    last = {"ingress": 0, "egress": 0}
    for stage in mau["mau_stages"]:
        row = {"stage": stage["stage_number"]}
        for kind, (field, units, _) in KINDS.items():
            taken = [names for names in map(users, stage.get(field, {}).get(units, [])) if names]
            row[kind] = len(taken)
            for table in (table for names in taken for table in names):
                tables[table][kind] += 1
        stages.append(row)
    for line in lines:
        if stage := re.match(r"stage (\d+) (ingress|egress):", line):
            last[stage[2]] = max(last[stage[2]], int(stage[1]))
    # The compiler ends well, and reports nothing, when a program needs more stages than there are.
    if max(last.values()) >= STAGES:
        sys.exit(f"the program does not fit: {last['ingress'] + 1} stages of ingress, {last['egress'] + 1} of egress")
    with open(outputs / "bfrt.json") as file:
        bfrt = json.load(file)
    with open(folder / "bfrt.json", "w") as file:
        # A table a line, so that changes can be read.
        table_lines = ",\n".join(json.dumps(table, separators=(",", ":")) for table in bfrt.pop("tables"))
        rest = json.dumps(bfrt, separators=(",", ":"))
        file.write(f'{rest[:-1]},"tables":[\n{table_lines}\n]}}\n')

    with open(folder / f"{program}.bfa.gz", "wb") as raw:
        with gzip.GzipFile(filename="", fileobj=raw, mode="wb", mtime=0) as file:
            file.write("".join(lines).encode())
    result = {
        "stages_used": {gress: stage + 1 for gress, stage in last.items()},
        "of_a_stage": {kind: count for kind, (_, _, count) in KINDS.items()},
        "stages": stages,
        "tables": {
            name: {"gress": gress(name), **dict(sorted(tables[name].items()))}
            for name in sorted(tables)
        },
    }
    with open(folder / "resources.json", "w") as file:
        json.dump(result, file, indent=1)
        file.write("\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
