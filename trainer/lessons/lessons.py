"""The nine lessons: each a mistake that data parallelism invites, beside a healthy run, the numbers that give it away, and what to
look at first. A table; lesson.py runs it."""
import statistics

SHORT = ["--width", "64", "--batch", "8"]
TEXT = ["--data", "{folder}/text"]


class Run:
    """What one rondo-train left: its command, whether it succeeded, stderr, the documents of --json and --trace."""

    def __init__(self, command, succeeded, errors, document, trace):
        self.command, self.succeeded, self.errors = command, succeeded, errors
        self.document, self.trace = document, trace
        self.steps, self.summary = document.get("steps", []), document.get("summary", {})

    def number(self, name):
        return self.summary.get(name, float("nan"))

    def loss_of(self, step):
        return self.steps[step - 1]["loss"] if step <= len(self.steps) else float("nan")

    def last_loss(self):
        losses = [step["loss"] for step in self.steps[-10:]]
        return statistics.mean(losses) if len(losses) == 10 else float("nan")

    def validation_loss(self):
        records = self.document.get("validation", [])
        return records[-1]["validation_loss"] if records else float("nan")

    def warnings(self):
        return "; ".join(self.summary.get("warnings", [])) or "none"

    def error(self):
        """From stderr: the first rank that ends takes rank 0 with it, perhaps before its document."""
        if self.succeeded:
            return "none"
        _, said, errors = self.errors.rpartition("rondo-train: ")
        lines = errors.split("\n") if said else errors.split("\n")[::-1]
        return next(filter(None, lines), "it says nothing")

    def reductions(self):
        return len(self.summary.get("buckets", []))

    def bytes_sent(self):
        """Per step: by rank 0, and the most that any other rank sent."""
        sent = self.summary.get("bytes_sent_per_step_by_rank", [0, 0])
        return sent[0], max(sent[1:])

    def spans(self, rank):
        return [e for e in self.trace.get("traceEvents", []) if e["ph"] == "X" and e["pid"] == rank]

    def wait_ms(self, rank):
        """For gradients, headers and the loss: the median over the steps."""
        steps = {}
        for span in self.spans(rank):
            if span["name"] == "wait for communication":
                steps[span["args"]["step"]] = steps.get(span["args"]["step"], 0) + span["dur"] / 1e3
        return statistics.median(steps.values()) if steps else float("nan")

    def bucket_starts(self):
        """All-reduces of buckets on rank 0, and how many of them were issued before the wait, so during backward. On a GPU that is
        when the stream that computes gets there: the trace keeps its order."""
        lanes = {e["tid"] for e in self.trace.get("traceEvents", [])
                 if e["pid"] == 0 and e["name"] == "thread_name" and e["args"]["name"].startswith("bucket ")}
        waits = {}
        for span in self.spans(0):
            if span["name"] == "wait for communication":
                waits[span["args"]["step"]] = min(span["ts"], waits.get(span["args"]["step"], span["ts"]))
        starts = [span for span in self.spans(0) if span["name"] == "queued" and span["tid"] in lanes]  # begins when it is issued
        return len(starts), sum(span["ts"] < waits[span["args"]["step"]] for span in starts)


class Lesson:
    """`runs`: (name, flags) with the healthy one first. `figures`: (name, function of a Run). `shows`: whether the symptom is there,
    a function of all runs; it rests on bytes, counts, orders of events, deterministic losses, and delays that were put in, never on
    how fast this machine is. `exposes_more`: the broken run exposes more communication, as it does on an idle machine. `says`: a
    sentence about the figures, made of them: a function of all runs. `on_cpus`: flags without --device cuda."""

    def __init__(self, name, broken, common, runs, figures, shows, look_first, exposes_more=False, says=None, on_cpus=()):
        self.name, self.broken, self.common, self.runs, self.figures = name, broken, common, runs, figures
        self.shows, self.look_first, self.exposes_more, self.says = shows, look_first, exposes_more, says
        self.on_cpus = list(on_cpus)

    def not_judged(self, runs):
        """What the figures show but shows() does not rest on, where it contradicts the lesson: a sentence, or nothing."""
        less = [name for name in ("step_ms", "exposed_comm_ms") if runs[0].number(name) > runs[1].number(name)]
        if not self.exposes_more or not less:
            return ""
        return (f"Not judged: {' and '.join(less)}, less in the broken run: the machine was busy with something else. Repeat it when "
                "it is not.")


WARNINGS = ("warnings", Run.warnings)
ERROR = ("error", Run.error)
LOSS = ("loss, mean of the last 10 steps", Run.last_loss)
STEP = ("step_ms (measured)", lambda r: r.number("step_ms"))
EXPOSED = ("exposed_comm_ms (measured)", lambda r: r.number("exposed_comm_ms"))
OTHER = ("other_wait_ms (measured)", lambda r: r.number("other_wait_ms"))


def order_says(runs):
    healthy, broken = runs[0].last_loss(), runs[1].last_loss()
    text = "The loss in the last steps is %.2f, and %.2f in a new order for every epoch." % (broken, healthy)
    if broken < healthy:
        text += (" Lower is no better here: it is the loss on the batches just seen, in an order that repeats, and in so few epochs "
                 "chance decides. Only the warning is a symptom.")
    return text


def star_shows(runs):
    (root, others), (dp_root, dp_others) = runs[0].bytes_sent(), runs[1].bytes_sent()
    loss = runs[0].number("final_loss")
    return (dp_root > 2.5 * dp_others and root < 1.5 * others and abs(runs[1].number("final_loss") - loss) < 1e-4 * loss)


def batch_norm_shows(runs):
    one = runs[2].loss_of(1)
    return (abs(runs[0].loss_of(1) - one) < 1e-4 * one and abs(runs[1].loss_of(1) - one) > 1e-2 * one
            and runs[1].validation_loss() > 1.5 * runs[0].validation_loss())


def learning_rate_shows(runs):
    good = runs[0].last_loss()
    return (runs[1].last_loss() > 1.1 * good
            and ("the loss became" in runs[2].error() or runs[2].last_loss() > 2 * good))


LESSONS = [
    Lesson(
        "same-data", "every rank reads rank 0's samples, as with a sampler made without its rank",
        ["--ranks", "2", *TEXT, *SHORT, "--steps", "40"],
        [("healthy", []), ("same data", ["--break", "same-data"])],
        [WARNINGS, LOSS],
        lambda runs: (runs[0].warnings() == "none" and "ranks 0 and 1 read the same data" in runs[1].warnings()
                      and runs[1].last_loss() > runs[0].last_loss()),
        "the rank and the number of ranks that the sampler was made with.",
        says=lambda runs: ("The loss falls more slowly, to %.2f instead of %.2f: two ranks learn what one would have learned. By itself "
                           "that looks like a harder problem; the warning names the cause." % (runs[1].last_loss(), runs[0].last_loss()))),
    Lesson(
        "no-set-epoch", "set_epoch() is not called when an epoch begins: every one has the first one's order",
        ["--ranks", "2", "--data", "{folder}/short", "--width", "64", "--batch", "16", "--epochs", "4"],
        [("healthy", []), ("no set_epoch", ["--break", "no-set-epoch"])],
        [WARNINGS, LOSS],
        lambda runs: (runs[0].warnings() == "none" and "begins epoch 0 again" in runs[1].warnings()
                      and runs[0].loss_of(1) == runs[1].loss_of(1)),
        "whether set_epoch(epoch) is called before each epoch, on every rank.", says=order_says),
    Lesson(
        "uneven-inputs", "rank 1 has fewer samples than rank 0, and nothing says what happens then",
        ["--ranks", "2", "--data", "{folder}/share-{rank}", "--width", "64", "--batch", "16", "--epochs", "1"],
        [("healthy: --join", ["--join"]), ("without --join", [])],
        [("steps made", lambda r: str(len(r.steps))), ERROR],
        lambda runs: (runs[0].succeeded and not runs[1].succeeded and "uneven inputs" in runs[1].error()
                      and "rank 1" in runs[1].error()),
        "how many samples each rank has. Give all the same (files of equal length, or one --data for all), or let a rank that has no "
        "more go on with empty batches (--join)."),
    Lesson(
        "no-buckets", "a bucket cap of 0: an all-reduce for every tensor, each with its own latency",
        ["--ranks", "2", "--model", "gpt", *TEXT, "--width", "64", "--context", "16", "--batch", "2", "--steps", "12"],
        [("auto", ["--bucket-cap-mb", "auto"]), ("cap 0", ["--bucket-cap-mb", "0"])],
        [("all-reduces per step", lambda r: str(r.reductions())),
         ("predicted_comm_us", lambda r: r.number("predicted_comm_us")), STEP, EXPOSED],
        # On CPUs 2 ms of latency in each one of 50, of which at most a few fit into backward.
        lambda runs: (runs[1].reductions() > 5 * runs[0].reductions()
                      and runs[1].number("predicted_comm_us") > 2 * runs[0].number("predicted_comm_us")),
        "--bucket-cap-mb, and 'all-reduces per step' times the latency of one (here --pace's, or on GPUs a kernel's; elsewhere the "
        "network's).",
        exposes_more=True, on_cpus=["--pace", "1GB/s,2ms"]),
    Lesson(
        "no-overlap", "all-reduces only start when backward has ended, though most gradients have long been final",
        ["--ranks", "2", *TEXT, "--layers", "4", "--width", "256", "--batch", "32", "--steps", "10", "--control-steps", "5", "--bucket-cap-mb", "0.25",
         "--trace", "{folder}/{run}.trace"],
        [("overlap", []), ("--no-overlap", ["--no-overlap"])],
        [STEP, EXPOSED, ("saved by overlap, measured (ms)", lambda r: r.summary["hidden_comm_ms"]), ("bucket all-reduces begun", lambda r: str(r.bucket_starts()[0])),
         ("of these before backward ended", lambda r: str(r.bucket_starts()[1]))],
        lambda runs: (0 < runs[0].bucket_starts()[0] == runs[0].bucket_starts()[1] == runs[1].bucket_starts()[0]
                      and runs[1].bucket_starts()[1] == 0),
        "the trace: do the buckets' rows begin under backward, or under the wait after it? Then --no-overlap, a cap so large that "
        "there is one bucket, or a layer that reports too late that its gradient is final.",
        exposes_more=True, on_cpus=["--pace", "1GB/s,20us"]),
    Lesson(
        "straggler", "the last rank takes 200 ms longer in every step",
        ["--ranks", "2", *TEXT, *SHORT, "--steps", "8", "--trace", "{folder}/{run}.trace"],
        [("healthy", []), ("slow rank 1", ["--break", "straggler"])],
        [STEP, EXPOSED, OTHER, ("rank 0 waits, all together (ms)", lambda r: r.wait_ms(0)),
         ("rank 1 waits, all together (ms)", lambda r: r.wait_ms(1))],
        # What was put in is 200 ms; half of it separates the rank that waits from the one that is waited for.
        lambda runs: runs[1].wait_ms(0) > 100 > runs[1].wait_ms(1),
        "the trace of all ranks: all wait for the rank that itself waits least. A large exposed_comm_ms is then no matter of the "
        "network: no bucket cap will help.",
        says=lambda runs: ("Rank 0 waits for gradients (exposed_comm_ms), and for headers and the loss (other_wait_ms); 'wait for "
                           "communication' in the trace is both. Times are medians over the steps.")),
    Lesson(
        "local-batch-norm", "each rank normalises by the statistics of its own two pictures instead of all eight",
        ["--model", "cnn", "--classes", "4", "--width", "8", "--data", "{folder}/pictures", "--validation", "{folder}/validation",
         "--steps", "60", "--lr", "0.02"],
        [("synchronized", ["--ranks", "4", "--batch", "2", "--sync-batch-norm"]), ("local", ["--ranks", "4", "--batch", "2"]),
         ("one rank", ["--ranks", "1", "--batch", "8"])],
        [("loss of step 1", lambda r: r.loss_of(1)), LOSS, ("validation loss", Run.validation_loss)],
        batch_norm_shows,
        "samples per rank (--batch): below about 16, batch norm should see all ranks' (--sync-batch-norm). Before that, whether N "
        "ranks have the loss of one rank with N times the batch in step 1: without batch norm they do."),
    Lesson(
        "wrong-learning-rate", "four ranks made the batch four times as large, and the rate was not adapted, or far too much",
        ["--ranks", "4", *TEXT, *SHORT, "--steps", "80"],
        [("rate x 4", ["--lr", "0.02", "--lr-scale", "linear", "--base-batch", "8"]), ("old rate", ["--lr", "0.02"]),
         ("rate x 256", ["--lr", "5.12"])],
        [LOSS, ERROR, ("lr of step 1", lambda r: r.steps[0]["lr"] if r.steps else float("nan"))],
        learning_rate_shows,
        "the line 'global batch' at the start, and which batch --lr was found for: --lr-scale linear --base-batch B follows it; "
        "--warmup if the first steps blow up."),
    Lesson(
        "star", "everything goes through rank 0, as in DataParallel: samples and parameters out, gradients back",
        ["--ranks", "4", *TEXT, "--width", "128", "--batch", "8", "--steps", "10"],
        [("ddp", []), ("dp", ["--strategy", "dp"])],
        [("rank 0 sends, bytes per step", lambda r: str(r.bytes_sent()[0])),
         ("others send at most", lambda r: str(r.bytes_sent()[1])),
         ("loss of the last step", lambda r: r.number("final_loss")), STEP, EXPOSED],
        star_shows,
        "bytes_sent_per_step_by_rank: one rank with N-1 times the others' is a star, whose time grows with every rank that is added. "
        "The losses are the same.",
        exposes_more=True, on_cpus=["--pace", "1GB/s,20us"]),
]
