#!/usr/bin/env python3
"""scripts/demo_table.py FOLDER: what scripts/demo measured, beside the formula and the prediction. Reads the programs' JSON and
formats it; computes ratios and nothing else."""
import json
import os
import pathlib
import sys


def load(name):
    return json.loads((pathlib.Path(sys.argv[1]) / name).read_text(encoding="utf-8"))


def print_columns(rows):
    """Left column flush left, the others flush right."""
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    for row in rows:
        print("  " + row[0].ljust(widths[0]) + "".join("   " + c.rjust(w) for c, w in zip(row[1:], widths[1:])))


def training_table(runs):
    """runs: (heading, document of rondo-train --json)."""
    summaries = [document["summary"] for _, document in runs]

    def row(title, text):
        return [title, *map(text, summaries)]

    def share_hidden(s):
        return s["hidden_comm_ms"] / (s["comm_us"] / 1e3)

    losses = ["%.3f to %.3f" % (d["steps"][0]["loss"], d["summary"]["final_loss"]) for _, d in runs]
    print_columns([
        ["per step, medians", *(heading for heading, _ in runs)],
        ["loss, first step to last", *losses],
        row("gradients (bytes)", lambda s: f"{s['gradient_bytes_per_step']:,}"),
        row("sent by the rank that sent most", lambda s: f"{max(s['bytes_sent_per_step_by_rank']):,}"),
        row("sent by the rank that sent least", lambda s: f"{min(s['bytes_sent_per_step_by_rank']):,}"),
        row("2(N-1)/N of what was reduced", lambda s: f"{s['bytes_formula_per_step']:,.0f}"),
        row("  sent / formula", lambda s: "%.4f" % (max(s["bytes_sent_per_step_by_rank"]) / s["bytes_formula_per_step"])),
        row("communication (ms)", lambda s: "%.2f" % (s["comm_us"] / 1e3)),
        row("  predicted (ms)", lambda s: "%.2f" % (s["predicted_comm_us"] / 1e3)),
        row("  hidden behind backward (ms)", lambda s: "%.2f" % s["hidden_comm_ms"]),
        row("  exposed (ms)", lambda s: "%.2f" % s["exposed_comm_ms"]),
        row("  hidden share", lambda s: "%.0f %%" % (100 * share_hidden(s))),
        row("waiting for headers and the like (ms)", lambda s: "%.2f" % s["other_wait_ms"]),
        row("compute (ms)", lambda s: "%.2f" % s["compute_ms"]),
        row("whole step (ms)", lambda s: "%.2f" % s["step_ms"]),
    ])


def sweep_table(heading, document):
    rows = [[heading, "algorithm", "time (us)", "predicted (us)", "time / predicted", "busbw (GB/s)"]]
    for result in document["results"]:
        half, predicted = result["out_of_place"], result["predicted_us"]
        rows.append([f"{result['size']:,} B", result["algorithm"], "%.1f" % half["time"], "%.1f" % predicted,
                     "%.2f" % (half["time"] / predicted), "%.2f" % half["bus_bw"]])
    print_columns(rows)


def main():
    if len(sys.argv) != 2:
        sys.exit("demo_table.py: give the folder that scripts/demo wrote")
    training_table([("2 ranks", load("train.json")), ("4 ranks, paced", load("train-paced.json")),
                    ("4 paced, no overlap", load("train-paced-no-overlap.json"))])
    print(f"""
  Communication counts from when a bucket's all-reduce is issued on rank 0 to when it has ended there, so it holds the wait for its turn, for
  a core to run on, and for ranks whose backward is behind; predictions are for ranks that come at once, each with a core of its own. This machine has {os.cpu_count()}.
""")
    sweep_table("all-reduce, 2 ranks", load("perf.json"))
    print()
    sweep_table("all-reduce, 4 paced ranks", load("perf-paced.json"))


if __name__ == "__main__":
    main()
