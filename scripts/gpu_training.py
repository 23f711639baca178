"""What scripts/gpu-check measures of training on a GPU: the layers beside their bounds, GPT-2 beside PyTorch, losses beside the host's."""
import importlib.util
import random
import statistics
import struct
import sys

from stages import SKIPPED

LAYERS, TRAIN, THREADS = "layers_bench_cuda", "rondo-train", "rank_threads_cuda"
PROGRAMS = [LAYERS, TRAIN, THREADS]
STAGES = ["layers", "train-nano-host", "train-nano", "train-gpt2", "train-gpt2-logged", "train-gpt2-torch", "train-gpt2-2-threads", "layers-fp32"]
# On the licence, which an archive of programs lacks. At the full rate from the first step on, losses tell nothing: with kernels of
# OpenBLAS for another CPU those of the host itself then differ by 4e-4 after 49 steps, and with this warm-up by 3e-8.
NANO = ["--model", "gpt", "--no-split-tied", "--steps", 50, "--warmup", 20, "--log-every", 0]
SHAPE = ["--layers", 12, "--width", 768, "--heads", 12, "--context", 1024, "--vocabulary", 50257, "--batch", 16]
STEPS, WARM_UP = 30, 10
PEAKS = {"H100 80GB HBM3": 989e12, "H200": 989e12, "A100": 312e12}  # dense products in bf16, by the data sheets
LAYER_GOAL, LOSS_GOAL, TORCH_GOAL, TORCH_SECOND_GOAL, HIDDEN_GOAL, LOG_GOAL = 0.8, 1e-4, 1.0, 1.1, 0.8, 1.01
NO_TORCH = "no PyTorch with CUDA here"
# nano's two ranks as threads in every way to train: the flags, and how far its losses may be from those of the first, relative.
FORM = [*NANO[:3], "--log-every", 0, "--device", "cuda", "--ranks", 2]
FORM_STEPS, SAVED_STEPS = 12, 6
FORMS = {"form-enqueued": (["--no-cuda-graph"], 0), "form-replayed": ([], 0), "form-zero": (["--zero", 1], 0),
         "form-auto-buckets": (["--bucket-cap-mb", "auto"], 0), "form-control-steps": (["--control-steps", 2], 0),
         "form-dp": (["--strategy", "dp"], 0), "form-bf16": (["--dtype", "bf16"], 5e-3),
         "form-fp16": (["--dtype", "fp16"], 0.06),  # its scale overflows once, and that step is left out
         "form-tf32": (["--tf32"], 1e-3),
         "form-compressed": (["--compress", "bf16"], 1e-3), "form-saved": (["--checkpoint-every", SAVED_STEPS], 0),
         "form-resumed": (["--resume"], 0),  # from form-saved's checkpoint
         "form-processes": ([], 0)}  # of rondo-train, which take turns on the GPU
LESSONS = {f"lesson-{name}": name for name in ("no-overlap", "local-batch-norm")}  # processes; the second synchronizes batch norm


def write_tokens(path, count):
    """Random tokens in llm.c's format: 256 words of header, then 16 bits each, of which 15 are random: fewer than the vocabulary."""
    header = struct.pack("<256i", 20240520, 1, count, *[0] * 253)
    drawn = int.from_bytes(random.Random(1).randbytes(2 * count), "little") & int.from_bytes(b"\xff\x7f" * count, "little")
    path.write_bytes(header + drawn.to_bytes(2 * count, "little"))


def run(check, root):
    """What several goals need comes first: with little time, the later runs are missing."""
    check.run_or_skip("layers", [check.program(LAYERS)], 45)
    if check.has("train", check.program(TRAIN)):
        run_training(check, root, check.program(TRAIN))
    check.run_or_skip("layers-fp32", [check.program(LAYERS), "--dtype", "fp32", "--batch", 4], 45)


def gpt2(check):
    """The words of a run of GPT-2, over tokens enough for every rank that is measured."""
    tokens = check.scratch / "tokens.bin"
    if not tokens.exists():
        write_tokens(tokens, max(2, len(check.gpus)) * 16 * 1025 * (STEPS + WARM_UP))
    return ["--model", "gpt", *SHAPE, "--data-format", "tokens", "--data", tokens, "--steps", STEPS + WARM_UP, "--dtype", "bf16",
            "--device", "cuda"]


def run_training(check, root, train):
    nano = [train, *NANO, "--data", root / "LICENSE"]
    check.measure("train-nano-host", nano, 30)
    check.measure("train-nano", [*nano, "--device", "cuda"], 30)
    check.measure("train-gpt2", [train, *gpt2(check), "--log-every", 0], 60)
    check.measure("train-gpt2-logged", [train, *gpt2(check), "--log-every", 1], 60)

    def judge(code, output):
        return (SKIPPED, NO_TORCH) if code and "not compiled with CUDA" in output else None

    if importlib.util.find_spec("torch") is None:
        check.stages.skip("train-gpt2-torch", NO_TORCH)
    else:
        check.measure("train-gpt2-torch", [sys.executable, root / "bench/peers/pytorch_train.py", "--model", "gpt", *SHAPE, "--device", "cuda",
                                           "--dtype", "bf16", "--compile", "--steps", STEPS, "--warm-up", WARM_UP], 150, judge)
    if check.has("train-gpt2-2-threads", check.program(THREADS)):
        # What is hidden is measured in steps that are enqueued: in so short a run with graphs, in the second alone.
        check.measure("train-gpt2-2-threads", [check.program(THREADS), *gpt2(check), "--ranks", 2, "--no-cuda-graph", "--log-every", 0], 40)


def run_forms(check, root):
    """What a single run on a GPU does not show: each form's losses are the first form's."""
    for name, (flags, _) in FORMS.items():
        program = check.program(TRAIN if name == "form-processes" else THREADS)
        if check.has(name, program):
            steps = SAVED_STEPS if name == "form-saved" else FORM_STEPS
            kept = ["--checkpoint-dir", check.scratch / "checkpoints"] if name in ("form-saved", "form-resumed") else []
            check.measure(name, [program, *FORM, "--steps", steps, "--data", root / "LICENSE", *flags, *kept], 20)
    for name, lesson in LESSONS.items():
        if check.has(name, check.program(TRAIN)):
            # From the tree, whose scripts the program runs.
            check.stages.run(name, ["env", "-C", root, check.program(TRAIN), "--lesson", lesson, "--device", "cuda",
                                    "--lesson-folder", check.scratch / name], 60)


def losses(document):
    """{step: loss}"""
    return {step["step"]: step["loss"] for step in (document or {}).get("steps", [])}


def farthest_form(measured):
    """(by how many times its bound the worst form's losses differ from the first's, a sentence); None: nothing to compare."""
    wanted = losses(measured.get("form-enqueued"))
    found = []
    for name, (_, bound) in FORMS.items():
        ours = losses(measured.get(name))
        shared = wanted.keys() & ours.keys()
        if shared and name != "form-enqueued":
            difference = max(abs(ours[step] - wanted[step]) / wanted[step] for step in shared)
            found.append((difference / max(bound, 1e-12), f"{name}: {difference:.1e}, {len(shared)} steps"))
    return max(found, default=None)


def median_step(document):
    """Milliseconds of rondo-train's steps after the warm-up; None: there are none."""
    steps = [step["step_ms"] for step in (document or {}).get("steps", [])][WARM_UP:]
    return statistics.median(steps) if steps else None


def farthest_losses(measured):
    """The largest relative difference of the two runs' losses, and of how many; None: one is missing."""
    runs = [[step["loss"] for step in (measured.get(name) or {}).get("steps", [])] for name in ("train-nano", "train-nano-host")]
    if not runs[0] or len(runs[0]) != len(runs[1]):
        return None
    return max(abs(a - b) / b for a, b in zip(*runs)), len(runs[0])


def utilisation(document, devices, step_ms):
    """A sentence: model FLOPs of a step, as llm.c counts them, against the GPU's peak in bf16; empty if the peak is unknown."""
    peak = next((each for name, each in PEAKS.items() if name in devices[0]["name"]), None)
    parameters = (document.get("summary") or {}).get("parameters")
    if not peak or not parameters:
        return ""
    layers, width, context, batch = (SHAPE[SHAPE.index(flag) + 1] for flag in ("--layers", "--width", "--context", "--batch"))
    flops = (6 * parameters + 6 * layers * width * context) * batch * context
    return f"; {flops / step_ms * 1e3 / peak:.0%} of the peak of {peak * 1e-12:.0f} Tflop/s"


def goals(report, goal, not_measured):
    """`goal` and `not_measured` are gpu_report's."""
    measured = report["measured"]
    found = []

    def add(what, target, value, met, how, stage, second=None):
        found.append(goal(what, target, None, None, not_measured(report, stage)) if value is None else goal(what, target, value, met, how, second))

    layers = (measured.get("layers") or {}).get("results") or []
    for what, rows in (("layers of GPT-2", [row for row in layers if "convolution" not in row["layer"]]),
                       ("convolutions", [row for row in layers if "convolution" in row["layer"]])):
        worst = min(rows, key=lambda row: row["of_bound"]) if rows else None
        share = worst and worst["of_bound"]
        add(f"{what} in bf16: the bound over the time, the worst", f">= {LAYER_GOAL}", share, share is not None and share >= LAYER_GOAL,
            worst and f"{worst['layer']}; {sum(row['of_bound'] >= LAYER_GOAL for row in rows)} of {len(rows)} reach it", "layers")
    losses = farthest_losses(measured)
    add("nano in fp32, the same seeds on host and GPU: losses, relative", f"<= {LOSS_GOAL}", losses and losses[0],
        losses and losses[0] <= LOSS_GOAL, losses and f"{losses[1]} steps", "train-nano")
    ours, torch = median_step(measured.get("train-gpt2")), (measured.get("train-gpt2-torch") or {}).get("step_ms")
    ratio = torch / ours if ours and torch else None
    tokens = 16 * 1024 / ours * 1e3 if ours else 0
    add("GPT-2 124M, bf16, 16 x 1024: tokens/s against compiled PyTorch", f">= {TORCH_GOAL}", ratio, ratio and ratio >= TORCH_GOAL,
        ratio and f"{tokens:.0f} tokens/s in steps of {ours:.1f} ms{utilisation(measured['train-gpt2'], report['devices'], ours)}",
        "train-gpt2" if not ours else "train-gpt2-torch", ratio and (f">= {TORCH_SECOND_GOAL}", ratio >= TORCH_SECOND_GOAL))
    threads = (measured.get("train-gpt2-2-threads") or {}).get("summary") or {}
    comm_ms = threads.get("comm_us", 0) / 1e3
    hidden = 1 - threads["exposed_comm_ms"] / comm_ms if comm_ms else None
    add("two ranks on one GPU: share of the collectives hidden behind backward", f">= {HIDDEN_GOAL}", hidden,
        hidden is not None and hidden >= HIDDEN_GOAL, f"{comm_ms:.2f} ms of collectives", "train-gpt2-2-threads")
    logged = median_step(measured.get("train-gpt2-logged"))
    cost = logged / ours if logged and ours else None
    add("logging every step against never: time of a step", f"<= {LOG_GOAL}", cost, cost and cost <= LOG_GOAL, cost and f"{logged:.2f} ms",
        "train-gpt2-logged")
    farthest = farthest_form(measured)
    add("nano's two ranks in every form of training: losses, as parts of what each may differ", "<= 1", farthest and farthest[0],
        farthest and farthest[0] <= 1, farthest and farthest[1], "form-enqueued")
    return found


def layer_rows(document):
    return [[row["layer"], f"{row['us']:.1f}", f"{row['bytes'] / row['us'] * 1e-3:.0f}", f"{row['operations'] / row['us'] * 1e-6:.1f}",
             f"{row['of_bound']:.3f}"] for row in (document or {}).get("results", [])]


def training_rows(measured):
    rows = []
    for name in ("train-nano-host", "train-nano", "train-gpt2", "train-gpt2-logged", "train-gpt2-2-threads", "gpus-train"):
        document = measured.get(name)
        step, summary = median_step(document), (document or {}).get("summary") or {}
        if step:
            rows.append([name, str(summary.get("ranks", "")), f"{step:.2f}", f"{summary.get('gemm_gflops_per_rank', 0) / 1e3:.1f}",
                         f"{summary.get('exposed_comm_ms', 0):.2f}"])
    for name, document in (("train-gpt2-torch", "train-gpt2-torch"), ("GPT-2's layers, each alone", "layers")):
        step = (measured.get(document) or {}).get("step_ms")
        if step:
            rows.append([name, "1", f"{step:.2f}", "", ""])
    return rows
