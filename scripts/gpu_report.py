"""The report of scripts/gpu-check: the measurements against the goals, and everything as Markdown. Runs nothing."""
import gpu_training
from stages import FAILED, HUNG, PASSED, SKIPPED
from tables import markdown_of, size_text

ENGINE_GOAL, ENGINE_SECOND_GOAL, SMALL_GOAL_US, SMALL_SECOND_GOAL_FLOORS = 0.75, 0.85, 12, 2
NCCL_GOAL, NCCL_SMALL_GOAL, NCCL_SMALL_BYTES = 1, 1.5, 1 << 20  # on several GPUs rondo is to be so many times as fast
# (goal, what, which of kernels_bench's rows): of moving bytes as fast as the device copies them. Integers that are divided and fp8 are
# bound by arithmetic. Other rows have no goal.
FLOATS, FP8 = ("float", "half", "bfloat16"), ("f8e4m3", "f8e5m2")
KERNELS_GOALS = (
    (0.92, "sums of fp32, bf16 and fp16", lambda row: row["redop"] == "sum" and row["type"] in FLOATS),
    (0.9, "max, min and product", lambda row: row["redop"] in ("max", "min", "prod")),
    (0.7, "averages, and sums of fp8", lambda row: row["redop"] == "avg" or row["redop"] == "sum" and row["type"] in FP8),
)
KERNELS_BYTES, LARGE_BYTES, SMALL_BYTES = 256 << 20, 1 << 30, 8 << 10


def goal(what, target, value, met, how, second=None):
    """`met` is None if nothing was measured; `how` then says why. `second`: (what is wanted once the target is met, whether it is)."""
    return {"what": what, "target": target, "value": value, "met": met, "how": how, "second": second}


def share_goal(what, share, how):
    """Of all-reduces of 1 GiB: the bound over the time."""
    return goal(what, f">= {ENGINE_GOAL}", share, share >= ENGINE_GOAL, how, (f">= {ENGINE_SECOND_GOAL}", share >= ENGINE_SECOND_GOAL))


def floor_of(report):
    """Microseconds of a kernel of 8 ranks without an operation; None: not measured."""
    floors = (report["measured"].get("engine") or {}).get("floors", [])
    return next((floor["us"] for floor in floors if floor["ranks"] == 8), None)


def small_us_goal(report, what, us, how):
    floor = floor_of(report)
    second = floor and (f"< {SMALL_SECOND_GOAL_FLOORS * floor:.2f}", us < SMALL_SECOND_GOAL_FLOORS * floor)
    return goal(what, f"< {SMALL_GOAL_US}", us, us < SMALL_GOAL_US, how, second)


def not_measured(report, stage, why="it measured no such row"):
    ended = next((s for s in report["stages"] if s["name"] == stage), None)
    if ended is None:
        return f"{stage} has not run"
    return f"{stage}: {why}" if ended["state"] == PASSED else f"{stage}: {ended['reason'] or ended['state']}"


def kernels_goal(report, target, kernels, belongs):
    what = f"reduction kernels, 256 MiB: bytes moved against the measured device copy rate, the slowest of {kernels}"
    document = report["measured"].get("kernels")
    rows = [row for row in document["results"] if belongs(row)] if document and document["bytes"] == KERNELS_BYTES else []
    if not rows:
        return goal(what, f">= {target}", None, None, not_measured(report, "kernels"))
    worst = min(rows, key=lambda row: row["of_copy"])
    reached = sum(row["of_copy"] >= target for row in rows)
    how = (f"{worst['type']} {worst['redop']}, {worst['sources']} to {worst['destinations']}; {reached} of {len(rows)} reach it; "
           f"the device copies {document['copy_gb_per_s']} GB/s")
    return goal(what, f">= {target}", worst["of_copy"], worst["of_copy"] >= target, how)


def engine_rows(report, ranks, size):
    document = report["measured"].get("engine") or {"results": []}
    return [row for row in document["results"] if row["ranks"] == ranks and row["bytes"] == size and row["right"]]


def perf_row(report, name, size):
    """(algorithm, the faster half's microseconds) of rondo-perf's row, if its results were right."""
    document = report["measured"].get(name) or {"results": []}
    rows = [row for row in document["results"] if row["size"] == size]
    halves = [row[place] for row in rows for place in ("out_of_place", "in_place") if row.get(place)]
    if not halves or any(half["nwrong"] not in (0, None) for half in halves):
        return None
    return rows[0].get("algorithm"), min(half["time"] for half in halves)


def large_perf_goal(report, ranks):
    """rondo-perf's time against the bound by the engine's benchmark for the same algorithm."""
    what = f"the same, {ranks} ranks, through rondo-perf"
    stage = f"perf-{ranks}-threads-large"
    found = [(measured, how) for name, how in ((stage, "default channels"), (f"{stage}-channels", "channels for the whole GPU"))
             if (measured := perf_row(report, name, LARGE_BYTES))]
    if not found:
        return goal(what, f">= {ENGINE_GOAL}", None, None, not_measured(report, stage, "no right result of that size"))
    (algorithm, us), how = min(found, key=lambda each: each[0][1])
    bounds = [row["bound_us"] for row in engine_rows(report, ranks, LARGE_BYTES) if row["algorithm"] == algorithm]
    if not bounds:
        return goal(what, f">= {ENGINE_GOAL}", None, None, f"{algorithm}, {us / 1e3:.2f} ms, for which engine gives no bound")
    share = round(bounds[0] / us, 3)
    return share_goal(what, share, f"{algorithm}, {us / 1e3:.2f} ms, {how}")


def small_perf_goal(report):
    what, stage = "the same through rondo-perf", "perf-8-threads"
    measured = perf_row(report, stage, SMALL_BYTES)
    if not measured:
        return goal(what, f"< {SMALL_GOAL_US}", None, None, not_measured(report, stage, "no right result of that size"))
    return small_us_goal(report, what, measured[1], measured[0])


def large_goal(report, ranks):
    what = f"all-reduce, {ranks} ranks on one GPU, 1 GiB: the algorithm's bytes at the device copy rate, over the time"
    rows = engine_rows(report, ranks, LARGE_BYTES)
    if not rows:
        return goal(what, f">= {ENGINE_GOAL}", None, None, not_measured(report, "engine", "no right result of that size"))
    best = min(rows, key=lambda row: row["us"])
    share = round(best["bound_us"] / best["us"], 3)
    return share_goal(what, share, f"{best['algorithm']}, {best['us'] / 1e3:.2f} ms")


def small_goal(report):
    what = "all-reduce, 8 ranks on one GPU, 8 KiB, graph of 20 operations a replay: us per operation"
    rows = engine_rows(report, 8, SMALL_BYTES)
    if not rows:
        return goal(what, f"< {SMALL_GOAL_US}", None, None, not_measured(report, "engine", "no right result of that size"))
    best = min(rows, key=lambda row: row["us"])
    floor = floor_of(report)
    return small_us_goal(report, what, best["us"], best["algorithm"] + (f"; {floor:.2f} us without an operation" if floor else ""))


def times_beside(report, stage, others):
    """[(size, us of the stage, us of the fastest other)] of the sizes that both have right results of."""
    rows = (report["measured"].get(stage) or {"results": []})["results"]
    times = []
    for size in sorted(row["size"] for row in rows):
        one = perf_row(report, stage, size)
        found = [other[1] for name in others if (other := perf_row(report, name, size))]
        if one and found:
            times.append((size, one[1], min(found)))
    return times


def nccl_goal(report, what, target, theirs, own, largest=None):
    """`theirs`: a stage; `own`: stages, of which the fastest counts; sizes count up to `largest`."""
    what = f"all-reduce, {what}: NCCL's time over rondo's, the worst size"
    if theirs not in report["measured"]:
        return goal(what, f">= {target}", None, None, not_measured(report, theirs))
    ratios = [(nccl / ours, size) for size, nccl, ours in times_beside(report, theirs, own) if largest is None or size <= largest]
    if not ratios:
        return goal(what, f">= {target}", None, None, not_measured(report, own[0], "no right result of NCCL's sizes"))
    ratio, size = min(ratios)
    how = f"{size_text(size)}; {sum(each >= target for each, _ in ratios)} of {len(ratios)} sizes reach it"
    return goal(what, f">= {target}", round(ratio, 3), ratio >= target, how)


def drop_in_goal(report):
    what = "all-reduce by NCCL's functions, of which rondo is the library: its time over rondo-perf's with 3 % and 1 us more, the worst size"
    times = times_beside(report, "nccl-drop-in", ["nccl-own"])
    if not times:
        return goal(what, "<= 1", None, None, not_measured(report, "nccl-drop-in", "no right result of the same size"))
    ratio, size = max((theirs / (ours * 1.03 + (1 if size < 64 << 10 else 0)), size) for size, theirs, ours in times)
    return goal(what, "<= 1", round(ratio, 3), ratio <= 1, size_text(size))


def goals_of(report):
    large = [judge(report, ranks) for ranks in (2, 4, 8) for judge in (large_goal, large_perf_goal)]
    kernels = [kernels_goal(report, *each) for each in KERNELS_GOALS]
    each = "a rank on each GPU"
    nccl = [nccl_goal(report, "two processes in registered memory on one GPU, against NCCL's two ranks", NCCL_GOAL, "nccl",
                      ("perf-2-processes", "perf-2-processes-large")),
            nccl_goal(report, "two threads on one GPU, against NCCL's two ranks", NCCL_GOAL, "nccl", ("nccl-own",)),
            nccl_goal(report, f"{each}, processes in registered memory", NCCL_GOAL, "gpus-nccl", ("gpus-processes",)),
            nccl_goal(report, f"{each}, threads", NCCL_GOAL, "gpus-nccl", ("gpus-threads",)),
            nccl_goal(report, f"{each}, the faster of both, up to {size_text(NCCL_SMALL_BYTES)}", NCCL_SMALL_GOAL, "gpus-nccl",
                      ("gpus-processes", "gpus-threads"), NCCL_SMALL_BYTES)]
    training = gpu_training.goals(report, goal, not_measured)
    return [*kernels, *large, *training, *nccl, drop_in_goal(report), small_goal(report), small_perf_goal(report)]


def verdict(goal_of):
    words = {True: "reached", False: "**short**", None: "not measured"}[goal_of["met"]]
    if goal_of["met"] and goal_of["second"]:
        target, met = goal_of["second"]
        words += f", and {target}" if met else f", short of {target}"
    return words


def section(title, header, rows):
    return f"## {title}\n\n{markdown_of(header, rows)}\n" if rows else ""


def goals_section(report):
    def number(value):
        return "-" if value is None else f"{value:.1e}" if 0 < value < 0.001 else f"{value:.3f}"

    rows = [[g["what"], g["target"], number(g["value"]), verdict(g), g["how"]] for g in report["goals"]]
    return section("Against the goals", ["what", "goal", "measured", "", "by"], rows)


def stages_section(report):
    rows = []
    for stage in report["stages"]:
        state = stage["reason"] if stage["state"] == HUNG else stage["state"]
        reason = "" if stage["state"] in (PASSED, HUNG) else stage["reason"]
        rows.append([stage["name"], f"**{state}**" if stage["state"] in (FAILED, HUNG) else state, f"{stage['seconds']:.1f}",
                     reason.replace("|", "\\|")])
    return section("What ran", ["stage", "", "seconds", "why"], rows)


def kernels_section(report):
    document = report["measured"].get("kernels")
    rows = [[r["type"], r["redop"], f"{r['sources']} to {r['destinations']}", f"{r['gb_per_s']}", f"{r['of_copy']:.3f}"]
            for r in document["results"]] if document else []
    return section("Reduction kernels", ["type", "operator", "buffers", "GB/s", "of copy"], rows)


def engine_section(report):
    document = report["measured"].get("engine")
    rows = [[str(r["ranks"]), r["algorithm"], size_text(r["bytes"]), f"{r['us']:.2f}", f"{r['bound_us'] / r['us']:.3f}",
             "" if r["right"] else "**wrong**"] for r in document["results"]] if document else []
    rows += [[str(f["ranks"]), "no operation", "", f"{f['us']:.2f}", "", ""] for f in (document or {}).get("floors", [])]
    return section("All-reduce in the engine's kernel, graph replays", ["ranks", "algorithm", "size", "us", "of bound", ""], rows)


def perf_sections(report):
    """A table for each run in rondo-perf's format."""
    text = ""
    for name, document in report["measured"].items():
        if name in ("kernels", "engine") or name.startswith(("layers", "train-")):
            continue
        rows = []
        for r in document.get("results", []):
            for place in ("out_of_place", "in_place"):
                half = r.get(place)
                if half:
                    rows.append([size_text(r["size"]), place.replace("_", " "), r.get("algorithm") or "", f"{half['time']:.2f}",
                                 f"{half['alg_bw']:.2f}", f"{half['bus_bw']:.2f}", str(half["nwrong"])])
        text += section(f"{name}: {document.get('results', [{}])[0].get('backend', '')}" if rows else name,
                        ["size", "", "algorithm", "us", "algbw", "busbw", "wrong"], rows)
    return text


def training_sections(report):
    header = ["layer", "us", "GB/s", "Tflop/s", "of bound"]
    text = "".join(section(f"{name}: the layers of GPT-2", header, gpu_training.layer_rows(report["measured"].get(name)))
                   for name in ("layers", "layers-fp32"))
    return text + section("Training", ["run", "ranks", "ms a step", "Tflop/s a rank", "exposed ms"], gpu_training.training_rows(report["measured"]))


def topology_section(report):
    text = report.get("topology", "")
    return "## Topology\n\n" + "".join(f"    {line}\n" for line in text.splitlines()) + "\n" if text else ""


def commands_section(report):
    lines = [stage["command"] for stage in report["stages"] if stage["command"]]
    return "## Commands\n\n" + "".join(f"    {line}\n" for line in lines)


def markdown(report):
    states = [stage["state"] for stage in report["stages"]]
    counts = ", ".join(f"{states.count(state)} {state}" for state in (PASSED, FAILED, HUNG, SKIPPED) if state in states)
    gpus = ", ".join(f"{d['name']} ({d['memory_mib']} MiB, compute capability {d['compute_capability']}, driver {d['driver']})"
                     for d in report["devices"])
    unfinished = "" if report["complete"] else "\n**It has not come to its end: this is what had been done.**\n"
    head = (f"# gpu-check\n{unfinished}\n- device: {gpus}\n- commit: {report['commit']}\n"
            f"- nvcc {report.get('nvcc', 'unknown')}, {report['cpus']} CPUs\n"
            f"- {report['started']}, {report['seconds']:.0f} s\n- stages: {counts or 'none yet'}\n\n")
    return head + goals_section(report) + stages_section(report) + kernels_section(report) + engine_section(report) \
        + perf_sections(report) + training_sections(report) + topology_section(report) + commands_section(report)
