#!/usr/bin/env python3
"""preload_test.py LIBRONDO-NCCL.SO PROGRAM HIDING.SO [TORCH_PYTHON]: LD_PRELOAD gives the library to a program that was linked with another
libnccl.so.2, to a program that opens libnccl.so.2 itself, and to PyTorch, where TORCH_PYTHON has one for NVIDIA's GPUs. HIDING.SO has an
ncclGetLastError of its own."""
import os
import subprocess
import sys

library, program, hiding, *torch_python = sys.argv[1:]
environment = {**os.environ, "RONDO_NCCL_HOST": "1"}
preloaded = {**environment, "LD_PRELOAD": library}


def said(command, env):
    done = subprocess.run(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=280, check=False)
    return done.stdout if done.returncode == 0 else f"{command} gave {done.returncode}:\n{done.stdout}"


def check(actual, wanted):
    if actual.strip() != wanted:
        sys.exit(f"wanted {wanted!r}, not {actual!r}")


check(said([program], environment), "version 1")
check(said([program], preloaded), "version 23203, sum 5")
OPENS = """import ctypes
version = ctypes.c_int()
print(ctypes.CDLL("libnccl.so.2").ncclGetVersion(ctypes.byref(version)), version.value)"""
check(said([sys.executable, "-c", OPENS], preloaded), "0 23203")
# Without a GPU, and without the variable, there is a sentence.
if not os.path.exists("/dev/nvidia0"):
    LACKS = """import ctypes
nccl = ctypes.CDLL("libnccl.so.2")
nccl.ncclGetLastError.restype = ctypes.c_char_p
print(nccl.ncclMemAlloc(ctypes.byref(ctypes.c_void_p()), ctypes.c_size_t(1)), nccl.ncclGetLastError(None).decode())"""
    text = said([sys.executable, "-c", LACKS], {**preloaded, "RONDO_NCCL_HOST": ""})
    if not text.startswith("2 ") or "CUDA" not in text and "cuInit" not in text:
        sys.exit(f"without a GPU ncclMemAlloc says {text!r}")
# A failure whose sentence the program cannot ask for is logged.
FAILS = """import ctypes
nccl = ctypes.CDLL(None)
nccl.ncclGetLastError.restype = ctypes.c_char_p
print(nccl.ncclMemAlloc(ctypes.byref(ctypes.c_void_p()), ctypes.c_size_t(1)), nccl.ncclGetLastError(None).decode())"""
sentence = "RONDO_NCCL_HOST is 'yes'"
visible = said([sys.executable, "-c", FAILS], {**preloaded, "RONDO_NCCL_HOST": "yes"})
hidden = said([sys.executable, "-c", FAILS], {**preloaded, "RONDO_NCCL_HOST": "yes", "LD_PRELOAD": f"{hiding}:{library}"})
if not visible.startswith(f"4 {sentence}") or hidden.count(sentence) != 1 or "[error]" not in hidden or "4 \n" not in hidden:
    sys.exit(f"a failure is to be logged where it is hidden, and only there: {visible!r}, {hidden!r}")
# Every function that PyTorch refers to is there, and it calls ours: an id begins with rondo's name.
ASKS = """import importlib.util
if importlib.util.find_spec("torch"):
    import torch.cuda.nccl
    print(torch.cuda.nccl.unique_id()[:5] if hasattr(torch._C, "_nccl_unique_id") else "for CPUs")"""
if torch_python and torch_python[0]:
    text = said([torch_python[0], "-c", ASKS], {**preloaded, "LD_BIND_NOW": "1"}).strip()
    if text not in ("b'rondo'", "for CPUs", ""):
        sys.exit(f"PyTorch says {text}")
    print(f"PyTorch: {text or 'there is none'}")
print("preloaded")
