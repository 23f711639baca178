#!/usr/bin/env python3
"""compare_with_torch.py MODEL_DUMP: the trainer's models against the same models in PyTorch.

Runs model_dump (tests/trainer/model_dump.cpp) for a few shapes, in float and double, builds each model again from the dumped
parameters with plain torch.nn.functional, and compares the logits (by their softmax, which is what the models keep of them), the
loss, every gradient, ten steps of AdamW, the running statistics that they leave, and the evaluation that uses those. Exits 77 where
torch cannot be imported.

Tolerances. double: logits 1e-13, losses 1e-13 relative (below 1 absolute: the error is that of the logits, however small their
loss), gradients 1e-12 of the tensor's largest (or 1e-15), parameters after ten steps 1e-8 of a step's length, which is the learning
rate, the evaluation behind them 1e-12. float: logits 1e-6, losses 1e-6 likewise, gradients 1e-5 of the largest (or 1e-8), the
evaluation 1e-4, but no parameters after ten steps: where a gradient is zero up to rounding (the keys' bias, to which softmax is
blind) AdamW divides rounding errors by each other.
"""
import json
import os
import pathlib
import subprocess
import sys
import tempfile

try:
    import torch
    from torch.nn import functional as F
except ImportError as error:
    # Debian's python3-torch belongs to the system's Python, which need not be the first in PATH.
    system = "/usr/bin/python3"
    if os.path.exists(system) and os.path.realpath(sys.executable) != os.path.realpath(system):
        os.execv(system, [system, *sys.argv])
    print(f"skipped: {error}; install python3-torch to compare")
    sys.exit(77)

# Program arguments behind TYPE MODEL OUT: layers, width, batch; for gpt heads, context, vocabulary, split_tied; for cnn channels,
# height, pixels of a row, batch_norm, average.
SHAPES = {
    "mlp": ["3 64 5", "1 16 1"],
    "gpt": ["2 16 2 2 5 11 1", "3 48 3 4 17 101 0", "1 64 2 2 130 50 1", "4 128 2 4 64 256 1"],
    "cnn": ["2 4 6 1 8 8 1 0", "3 6 4 3 13 10 1 1", "1 5 3 2 7 9 0 0", "2 16 8 1 28 28 1 0"],
}


class Tolerance:
    def __init__(self, double):
        self.loss = 1e-13 if double else 1e-6
        self.evaluation = 1e-12 if double else 1e-4
        self.gradient = 1e-12 if double else 1e-5
        self.least = 1e-15 if double else 1e-8
        self.parameter = 1e-8 if double else None  # in learning rates


def mlp(dump, p, inputs, buffers, training):
    x = p["embedding"][inputs].flatten(1)
    for layer in range(1, dump["shape"]["layers"] + 1):
        x = F.relu(F.linear(x, p[f"hidden{layer}.weight"], p[f"hidden{layer}.bias"]))
    return F.linear(x, p["output.weight"], p["output.bias"])


def cnn(dump, p, inputs, buffers, training):
    x = inputs.view(-1, *dump["shape"]["image"]).to(p["linear.weight"].dtype)
    block = 1
    while f"conv{block}.weight" in p:
        x = F.conv2d(x, p[f"conv{block}.weight"], p.get(f"conv{block}.bias"), padding=1)
        if f"bn{block}.weight" in p:
            x = F.batch_norm(x, buffers[f"bn{block}.running_mean"], buffers[f"bn{block}.running_var"], p[f"bn{block}.weight"],
                             p[f"bn{block}.bias"], training=training, momentum=0.1)
            buffers[f"bn{block}.num_batches"] += 1 if training else 0
        x = F.relu(x)
        if block <= 2:
            x = F.max_pool2d(x, 2)
        block += 1
    x = x.mean((2, 3)) if dump["shape"]["average"] else x.flatten(1)
    return F.linear(x, p["linear.weight"], p["linear.bias"])


def gpt(dump, p, inputs, buffers, training):
    heads = dump["shape"]["heads"]
    samples, context = inputs.shape
    width = p["wte.weight"].shape[1]

    def norm(x, name):
        return F.layer_norm(x, (width,), p[name + ".weight"], p[name + ".bias"])

    def linear(x, name):
        return F.linear(x, p[name + ".weight"], p[name + ".bias"])

    hidden = torch.ones(context, context, dtype=torch.bool).triu(1)
    x = p["wte.weight"][inputs] + p["wpe.weight"][:context]
    for layer in range(dump["shape"]["layers"]):
        block = f"h.{layer}."
        q, k, v = (part.view(samples, context, heads, -1).transpose(1, 2)
                   for part in linear(norm(x, block + "ln_1"), block + "attn.c_attn").split(width, 2))
        scores = q @ k.transpose(2, 3) / (width // heads) ** 0.5
        mixed = scores.masked_fill(hidden, float("-inf")).softmax(3) @ v
        x = x + linear(mixed.transpose(1, 2).reshape(x.shape), block + "attn.c_proj")
        wide = F.gelu(linear(norm(x, block + "ln_2"), block + "mlp.c_fc"), approximate="tanh")
        x = x + linear(wide, block + "mlp.c_proj")
    return (norm(x, "ln_f") @ p["wte.weight"].T).flatten(0, 1)


def tensors(dump, key):
    kind = torch.float64 if dump["double"] else torch.float32
    return {t["name"]: torch.tensor(t["values"], dtype=torch.float64).to(kind).view(t["shape"]) for t in dump[key]}


def compare(dump):
    """Every difference that exceeds its tolerance, in words; and the worst one, as a share of it."""
    tolerance = Tolerance(dump["double"])
    errors, worst = [], 0.0

    def check(what, ours, theirs, bound):
        nonlocal worst
        difference = (ours.double() - theirs.double()).abs().max().item()
        worst = max(worst, difference / bound)
        if not difference <= bound:
            errors.append(f"{what}: {difference:.3g} apart, {bound:.3g} allowed")

    model = {"mlp": mlp, "gpt": gpt, "cnn": cnn}[dump["shape"]["model"]]
    parameters = {name: value.requires_grad_() for name, value in tensors(dump, "parameters").items()}
    inputs = torch.tensor(dump["tokens"] or dump["images"]).view(dump["batch"], -1)
    targets = torch.tensor(dump["targets"])
    ends = {name: torch.full_like(value, 1.0 if name.endswith("var") else 0.0) for name, value in tensors(dump, "buffers").items()}
    decays = {t["name"]: t["decays"] for t in dump["parameters"]}
    settings = dump["optimizer"]
    groups = [{"params": [v for n, v in parameters.items() if decays[n] == which],
               "weight_decay": settings["decay"] if which else 0.0} for which in (True, False)]
    optimizer = torch.optim.AdamW(groups, lr=settings["lr"], betas=settings["betas"], eps=settings["eps"])
    for step, ours in enumerate(dump["losses"]):
        logits = model(dump, parameters, inputs, ends, training=True)
        loss = F.cross_entropy(logits, targets)
        check(f"loss before step {step + 1}", torch.tensor(ours, dtype=torch.float64), loss.detach(),
              tolerance.loss * max(1.0, abs(loss.item())))
        if step == len(dump["losses"]) - 1:
            break
        optimizer.zero_grad()
        loss.backward()
        if step == 0:
            check("softmax of the logits", torch.tensor(dump["probabilities"], dtype=torch.float64),
                  logits.detach().softmax(1).flatten(), tolerance.loss)
            for name, gradient in tensors(dump, "gradients").items():
                theirs = parameters[name].grad
                check(f"gradient of {name}", gradient, theirs,
                      max(tolerance.gradient * theirs.abs().max().item(), tolerance.least))
        optimizer.step()
    if tolerance.parameter is not None:
        for name, value in tensors(dump, "after").items():
            check(f"{name} after ten steps", value, parameters[name].detach(), tolerance.parameter * settings["lr"])
    for name, value in tensors(dump, "buffers").items():
        check(f"{name} after ten steps", value, ends[name], tolerance.loss * max(1.0, ends[name].abs().max().item()))
    logits = model(dump, parameters, inputs, ends, training=False).detach()
    loss = F.cross_entropy(logits, targets).item()
    ours = dump["evaluation"]
    check("loss of the evaluation", torch.tensor(ours["loss"], dtype=torch.float64), torch.tensor(loss, dtype=torch.float64),
          tolerance.evaluation * abs(loss))
    check("softmax of the evaluation", torch.tensor(ours["probabilities"], dtype=torch.float64), logits.softmax(1).flatten(),
          tolerance.evaluation)
    return errors, worst


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    torch.set_num_threads(1)
    failed = False
    with tempfile.TemporaryDirectory() as folder:
        out = pathlib.Path(folder) / "dump.json"
        for model, shapes in SHAPES.items():
            for shape in shapes:
                for kind in ("double", "float"):
                    subprocess.run([sys.argv[1], kind, model, out, *shape.split()], check=True)
                    errors, worst = compare(json.loads(out.read_text()))
                    print(f"{model} {shape} {kind}: " + ("DIFFERS" if errors else f"agrees, at most {worst:.1%} of what is allowed"))
                    for error in errors:
                        print("  " + error)
                    failed = failed or bool(errors)
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
