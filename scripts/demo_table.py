#!/usr/bin/env python3
"""scripts/demo_table.py FOLDER: compares scripts/demo's measurements with the formula and the prediction. Reads the programs' JSON,
formats it, and computes only ratios. Leaves out steps of the demo that have not run."""
import json
import pathlib
import sys
import textwrap

NOTES = """
Computing and communication alone are measured before the first step, while the other one rests ("-": the run was too short, or
communication takes too little of a step). Hidden communication is the time that overlap saves: computing alone plus communication alone, less the step.
Predictions assume that all ranks start together. Once, after step 5, ranks also exchange what they measured and change the
layout of their buckets. That is a few hundred bytes, at most one byte in an average over all steps.
"""
SWEEPS = {"perf": "all-reduce, {} ranks", "perf-paced": "all-reduce, {} paced ranks", "perf-hosts": "all-reduce, {} ranks on two hosts"}


def load(name, key):
    """The document in that file, or None if its program has not run, or has failed before it wrote `key`."""
    try:
        document = json.loads((pathlib.Path(sys.argv[1]) / name).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return document if document.get(key) else None


def print_columns(rows):
    """The first column is aligned left, the others right."""
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    for row in rows:
        print("  " + row[0].ljust(widths[0]) + "".join("   " + c.rjust(w) for c, w in zip(row[1:], widths[1:])))


def number(value, how, factor=1):
    return "-" if value is None else how % (factor * value)


def alone(summary, key):
    """What control steps have measured."""
    accounting = summary.get("accounting", {})
    return "%.2f" % accounting[key] if accounting.get("control_steps") else "-"


def training_table(runs):
    """runs: (heading, document of rondo-train --json)."""
    summaries = [document["summary"] for _, document in runs]
    runs = [(f"{document['summary']['ranks']} ranks{heading}", document) for heading, document in runs]

    def row(title, text):
        return [title, *map(text, summaries)]

    losses = ["%.3f to %.3f" % (d["steps"][0]["loss"], d["summary"]["final_loss"]) for _, d in runs]
    print_columns([
        ["per step, medians", *(heading for heading, _ in runs)],
        row("whole step (ms)", lambda s: "%.2f" % s["step_ms"]),
        row("  compute (ms)", lambda s: "%.2f" % s["compute_ms"]),
        row("    alone, without communication (ms)", lambda s: alone(s, "compute_ms")),
        row("  exposed communication (ms)", lambda s: "%.2f" % s["exposed_comm_ms"]),
        row("  waiting for headers and the like (ms)", lambda s: "%.2f" % s["other_wait_ms"]),
        row("communication alone (ms)", lambda s: alone(s, "cost_ms")),
        row("  predicted (ms)", lambda s: "%.2f" % (s["predicted_comm_us"] / 1e3)),
        row("  hidden: what overlap saves (ms)", lambda s: number(s["hidden_comm_ms"], "%.2f")),
        row("  hidden share", lambda s: number(s["hidden_fraction"], "%.0f %%", 100)),
        ["loss, first step to last", *losses],
        row("gradients (bytes)", lambda s: f"{s['gradient_bytes_per_step']:,}"),
        row("sent by the rank that sent most", lambda s: f"{max(s['bytes_sent_per_step_by_rank']):,}"),
        row("sent by the rank that sent least", lambda s: f"{min(s['bytes_sent_per_step_by_rank']):,}"),
        row("all-reduces by", lambda s: ", ".join(sorted({b["algorithm"] for b in s["buckets"]}))),
        row("formula: 2(N-1)/N of the gradients", lambda s: f"{s['bytes_formula_parts']['gradients']:,.0f}"),
        row("  + 2(N-1)/N of the loss and a stop word, 16 bytes", lambda s: f"{s['bytes_formula_parts']['loss']:,.0f}"),
        row("  + 32 bytes of headers to each other rank", lambda s: f"{s['bytes_formula_parts']['headers']:,.0f}"),
        row("  = each rank on average", lambda s: f"{s['bytes_formula_per_step']:,.0f}"),
        row("  sent / formula", lambda s: "%.4f" % (max(s["bytes_sent_per_step_by_rank"]) / s["bytes_formula_per_step"])),
    ])


def sweep_table(heading, document):
    rows = [[heading, "algorithm", "time (us)", "predicted (us)", "time / predicted", "busbw (GB/s)"]]
    for result in document["results"]:
        half, predicted = result["out_of_place"], result["predicted_us"]
        rows.append([f"{result['size']:,} B", result["algorithm"], "%.1f" % half["time"], "%.1f" % predicted,
                     "%.2f" % (half["time"] / predicted), "%.2f" % half["bus_bw"]])
    print_columns(rows)


def shared_cores(runs):
    for _, document in runs:
        ranks, cores = document["summary"]["ranks"], document["summary"]["cores"]
        if ranks > cores:
            return f"{ranks} ranks take turns on {cores} cores: overlap cannot show a gain, and predictions are rough.\n"
    return ""


def main():
    if len(sys.argv) != 2 or sys.argv[1].startswith("-"):
        print(__doc__)
        sys.exit(0 if sys.argv[1:] in (["-h"], ["--help"]) else 2)
    runs = [(heading, load(name, "summary")) for heading, name in (
        ("", "train.json"), (", paced", "train-paced.json"), (", paced, no overlap", "train-paced-no-overlap.json"))]
    runs = [(heading, document) for heading, document in runs if document]
    sweeps = [(name, load(name + ".json", "results")) for name in ("perf", "perf-paced", "perf-hosts")]
    sweeps = [(name, document) for name, document in sweeps if document]
    if runs:
        training_table(runs)
        print(textwrap.indent(NOTES + shared_cores(runs), "  "))
    for name, document in sweeps:
        sweep_table(SWEEPS[name].format(document["config"]["ranks"]), document)
        print()
    if not runs and not sweeps:
        print("  no step has left a measurement")


if __name__ == "__main__":
    main()
