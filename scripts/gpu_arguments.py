"""The command line of scripts/gpu-check, what it runs by names, and the refusals that come before any work."""
import argparse
import pathlib
import sys
import tempfile

import gpu_prebuilt
import gpu_training

ROOT = pathlib.Path(__file__).resolve().parent.parent
# For all stages: under nine minutes, with a reserve for writing.
SECONDS = {"build": 520, "prebuilt": 450, "quick": 60}
# (tool, program, cases): a few cases each, because they take many times as long under the tool. racecheck looks at the memory that a
# block's threads share, which only the engine has; and with one rank, since the tools may run one kernel at a time.
SANITIZED = [("memcheck", "kernels_cuda_test", "*few moves of each*"), ("memcheck", "device_engine_test", "*named*"),
             ("racecheck", "device_engine_test", "*named*"), ("racecheck", "device_engine_test", "*messages to oneself*")]
# (stage, program, cases, limit) of --quick.
QUICK = [("quick-kernels", "kernels_cuda_test", "*few moves of each*", 15),
         ("quick-engine", "device_engine_test", "*replayed graph*,*disagree*,*messages of all pairs*", 20),
         ("quick-communicators", "communicator_device_cuda_test", "*every collective*,*replayed graph*,*that disagree*", 20)]
QUICK_PERF = ("quick-threads", "quick-graph", "quick-processes")
RANKS = (1, 2, 4, 8)
# Thread blocks for each of so many ranks that together occupy an H100 or H200; the default leaves most of it to others.
CHANNELS = {2: 64, 4: 32, 8: 16}
COLLECTIVES = ("reduce_scatter", "all_gather", "broadcast", "barrier", "reduce", "gather", "scatter", "all_to_all", "all_gather_v",
               "reduce_scatter_v", "all_to_all_v", "gather_v", "scatter_v", "inclusive_scan", "exclusive_scan", "sendrecv")
TORCH_DROP_IN = {"nccl-drop-in-torch": [], "nccl-drop-in-torch-left": ["--leave"]}  # PyTorch on rondo in NCCL's place
GPUS = ("gpus-nccl", "gpus-threads", "gpus-processes", "gpus-train")  # a rank on each of several
COPIES = ("copy-engine", "two-shot-direct")  # all_gather by the copy engine, and beside it by the kernel


def stages_of(arguments):
    """The names that --limit may give, but for test-NAME."""
    if arguments.pack:
        return ["configure", "build"]
    building = [] if arguments.prebuilt else ["configure", "build"]
    if arguments.quick:
        return [*building, *(name for name, *_ in QUICK), *QUICK_PERF]
    threads = [f"perf-{ranks}-threads{part}" for ranks in RANKS for part in ("", "-large", *(["-large-channels"] if ranks in CHANNELS else []))]
    return [*building, "tests", *gpu_training.STAGES, "kernels", "engine", "perf-probe", "topology", *threads, "mps", "perf-2-processes",
            "perf-2-processes-large", *(copies_stage(way) for way in COPIES), "perf-2-processes-all_gather", "nccl", "nccl-own",
            "nccl-drop-in", *TORCH_DROP_IN, *GPUS, *(f"perf-{what}" for what in COLLECTIVES), "perf-types", "perf-large", *gpu_training.FORMS, *gpu_training.LESSONS,
            *(sanitized_stage(*each) for each in SANITIZED)]


def copies_stage(way):
    return f"perf-2-threads-all_gather-{way}"


def sanitized_stage(tool, program, cases):
    return f"{tool}-{program}" + ("-messages" if "messages" in cases else "")


def seconds_of(text):
    """A time limit; below a second no stage begins."""
    try:
        number = float(text)
    except ValueError:
        number = 0
    if not 1 <= number <= 86400:
        raise argparse.ArgumentTypeError(f"'{text}' is not a number of seconds from 1 to 86400 (a day)")
    return number


def limits_of(arguments, parser):
    """{stage: seconds} of --limit."""
    names, limits = stages_of(arguments), {}
    for given in arguments.limit:
        name, _, number = given.rpartition("=")
        try:
            limits[name] = seconds_of(number)
        except argparse.ArgumentTypeError as error:
            parser.error(f"--limit {given} is not STAGE=SECONDS: {error}")
        if name not in names and not (name.startswith("test-") and "tests" in names):
            tests = ", and test-NAME for each test" if "tests" in names else ""
            parser.error(f"--limit {given}: there is no stage '{name}' here. There are: {', '.join(names)}{tests}")
    return limits


def parse_arguments(description):
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bundle", type=pathlib.Path, metavar="DIR", nargs="?", help="what scripts/bundle-deps made")
    parser.add_argument("--pack", type=pathlib.Path, metavar="FILE", help="build, and pack the programs into this archive (.tar.xz)")
    parser.add_argument("--architectures", metavar="LIST",
                        help=f"of --pack, as CMAKE_CUDA_ARCHITECTURES; fewer build sooner; default: {gpu_prebuilt.ARCHITECTURES}")
    parser.add_argument("--prebuilt", type=pathlib.Path, metavar="FILE", help="run the programs of this archive")
    parser.add_argument("--quick", action="store_true", help="one minute that proves the engine")
    parser.add_argument("--out", type=pathlib.Path, default=ROOT / "build" / "gpu-check",
                        help="for report.md, report.json and logs.tar.gz; default: %(default)s")
    parser.add_argument("--build-dir", type=pathlib.Path, default=ROOT / "build" / "gpu", help="default: %(default)s")
    parser.add_argument("--commit", help="the commit of this tree; default: from git, or the archive's")
    parser.add_argument("--seconds", type=seconds_of, help=f"for all stages together; default: {SECONDS['build']}, with --prebuilt "
                        f"{SECONDS['prebuilt']}, with --quick {SECONDS['quick']} after building")
    parser.add_argument("--limit", action="append", default=[], metavar="STAGE=SECONDS",
                        help="another limit for one stage, by its name in report.md; may be repeated")
    arguments = parser.parse_args()
    if arguments.bundle is None and arguments.pack is None and arguments.prebuilt is None:
        parser.error("give DIR, or --pack FILE, or --prebuilt FILE")
    if arguments.pack and (arguments.prebuilt or arguments.quick):
        parser.error("--pack runs nothing: it stands alone, or with DIR")
    if arguments.prebuilt and arguments.bundle:
        parser.error(f"--prebuilt builds nothing: give it or DIR ({arguments.bundle}), not both")
    if arguments.architectures is not None and not arguments.pack:
        parser.error("--architectures is for --pack; DIR builds for the GPU at hand, and --prebuilt builds nothing")
    arguments.architectures = arguments.architectures or gpu_prebuilt.ARCHITECTURES
    arguments.limits = limits_of(arguments, parser)
    return arguments


def look_at_inputs(arguments):
    """Ends the program if DIR or --prebuilt's archive is not what it should be."""
    if arguments.bundle and not (arguments.bundle / "manifest.json").exists():
        why = "it has no manifest.json" if arguments.bundle.is_dir() else "there is no such folder"
        sys.exit(f"gpu-check: {arguments.bundle} is not what scripts/bundle-deps makes: {why}")
    if arguments.prebuilt:
        gpu_prebuilt.look_at(arguments.prebuilt)


def make_folder(folder, option, given):
    """Ends the program if no file can be written there."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        why = "it is a file" if isinstance(error, FileExistsError) else error.strerror
        sys.exit(f"gpu-check: {option} {given}: {folder} cannot be written to as a folder: {why}")


def make_folders(arguments):
    """Before anything is built, so that no work is lost for want of a place."""
    make_folder(arguments.out, "--out", arguments.out)
    if not arguments.prebuilt:
        make_folder(arguments.build_dir, "--build-dir", arguments.build_dir)
    if arguments.pack:
        make_folder(arguments.pack.parent, "--pack", arguments.pack)
        if arguments.pack.is_dir():
            sys.exit(f"gpu-check: --pack {arguments.pack}: that is a folder, not a file to write")
