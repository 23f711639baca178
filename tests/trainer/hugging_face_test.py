#!/usr/bin/env python3
"""hugging_face_test.py RONDO_TRAIN: rondo-train reads GPT-2's weights as Hugging Face's files hold them, and writes such files.

The files are made here, byte by byte: names, order, shapes and metadata of openai-community/gpt2 (names without a prefix, causal masks
kept as attn.bias) and of what transformers saves today (prefix transformer., no masks), for a tiny shape. The loss of the first step must be that of the
same model computed here in plain Python, with x @ W + b as Hugging Face's Conv1D has it, so a matrix that was not transposed, or twice, gives another.
"""
import array
import json
import math
import pathlib
import random
import struct
import subprocess
import sys
import tempfile
import unittest

LAYERS, WIDTH, HEADS, CONTEXT, VOCABULARY = 2, 8, 2, 6, 256
TEXT = b"rondo !"  # one sample: CONTEXT symbols, and each one's next


def count(shape):
    return math.prod(shape)


def shapes(prefix, masks):
    """{name: shape} in the files' order, which is that of the names."""
    names = {"wte.weight": [VOCABULARY, WIDTH], "wpe.weight": [CONTEXT, WIDTH], "ln_f.weight": [WIDTH], "ln_f.bias": [WIDTH]}
    for block in (f"h.{layer}." for layer in range(LAYERS)):
        for norm in ("ln_1", "ln_2"):
            names[block + norm + ".weight"] = names[block + norm + ".bias"] = [WIDTH]
        for linear, rows, columns in (("attn.c_attn", WIDTH, 3 * WIDTH), ("attn.c_proj", WIDTH, WIDTH),
                                      ("mlp.c_fc", WIDTH, 4 * WIDTH), ("mlp.c_proj", 4 * WIDTH, WIDTH)):
            names[block + linear + ".weight"] = [rows, columns]  # [in x out]
            names[block + linear + ".bias"] = [columns]
        if masks:
            names[block + "attn.bias"] = [1, 1, CONTEXT, CONTEXT]
    return {prefix + name: names[name] for name in sorted(names)}


def make_values(names):
    """Floats of 32 bits, so that the file is exact; masks are masks."""
    numbers = random.Random(1)
    values = {}
    for name, shape in names.items():
        if name.endswith(".attn.bias"):
            mask = [1.0 if column <= row else 0.0 for row in range(CONTEXT) for column in range(CONTEXT)]
            values[name] = array.array("f", mask)
        else:
            values[name] = array.array("f", [numbers.gauss(1 if ".ln_" in "." + name and name.endswith("weight") else 0, 0.3)
                                             for _ in range(count(shape))])
    return values


def safetensors(names, values):
    header, offset = {"__metadata__": {"format": "pt"}}, 0
    for name, shape in names.items():
        end = offset + 4 * count(shape)
        header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [offset, end]}
        offset = end
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text + b"".join(values[name].tobytes() for name in names)


def read_safetensors(path):
    content = path.read_bytes()
    size = struct.unpack("<Q", content[:8])[0]
    header = json.loads(content[8:8 + size])
    metadata = header.pop("__metadata__", {})
    tensors = {}
    for name, entry in header.items():
        begin, end = entry["data_offsets"]
        tensors[name] = (entry["dtype"], entry["shape"], content[8 + size + begin:8 + size + end])
    return tensors, metadata


class Gpt2:
    """Hugging Face's modelling_gpt2, evaluated without dropout, on lists of rows."""

    def __init__(self, names, values, prefix):
        self.tensor = {name[len(prefix):]: (names[name], values[name]) for name in names}

    def matrix(self, name):
        (rows, columns), flat = self.tensor[name]
        return [flat[row * columns:(row + 1) * columns] for row in range(rows)]

    def conv1d(self, x, name):
        weight, bias = self.matrix(name + ".weight"), self.tensor[name + ".bias"][1]
        return [[bias[o] + sum(value * weight[i][o] for i, value in enumerate(row)) for o in range(len(bias))] for row in x]

    def norm(self, x, name):
        weight, bias = self.tensor[name + ".weight"][1], self.tensor[name + ".bias"][1]
        result = []
        for row in x:
            mean = sum(row) / len(row)
            deviation = math.sqrt(sum((value - mean) ** 2 for value in row) / len(row) + 1e-5)
            result.append([(value - mean) / deviation * w + b for value, w, b in zip(row, weight, bias)])
        return result

    @staticmethod
    def softmax(row):
        top = max(row)
        exponentials = [math.exp(value - top) for value in row]
        return [value / sum(exponentials) for value in exponentials]

    def attention(self, x, block):
        qkv, each = self.conv1d(x, block + "attn.c_attn"), WIDTH // HEADS
        mixed = [[0.0] * WIDTH for _ in x]
        for head in range(HEADS):
            q, k, v = ([row[part * WIDTH + head * each:part * WIDTH + (head + 1) * each] for row in qkv] for part in range(3))
            for t in range(len(x)):
                scores = [sum(a * b for a, b in zip(q[t], k[s])) / math.sqrt(each) for s in range(t + 1)]
                for s, share in enumerate(self.softmax(scores)):
                    for i in range(each):
                        mixed[t][head * each + i] += share * v[s][i]
        return self.conv1d(mixed, block + "attn.c_proj")

    def perceptron(self, x, block):
        def gelu(u):
            return 0.5 * u * (1 + math.tanh(math.sqrt(2 / math.pi) * (u + 0.044715 * u ** 3)))

        return self.conv1d([[gelu(value) for value in row] for row in self.conv1d(x, block + "mlp.c_fc")], block + "mlp.c_proj")

    def loss(self, text):
        def plus(a, b):
            return [[p + q for p, q in zip(left, right)] for left, right in zip(a, b)]

        tokens = self.matrix("wte.weight")
        x = plus([tokens[symbol] for symbol in text[:-1]], self.matrix("wpe.weight"))
        for block in (f"h.{layer}." for layer in range(LAYERS)):
            x = plus(x, self.attention(self.norm(x, block + "ln_1"), block))
            x = plus(x, self.perceptron(self.norm(x, block + "ln_2"), block))
        total = 0.0
        for row, target in zip(self.norm(x, "ln_f"), text[1:]):
            total -= math.log(self.softmax([sum(a * b for a, b in zip(row, token)) for token in tokens])[target])
        return total / (len(text) - 1)


class HuggingFaceTest(unittest.TestCase):
    def setUp(self):
        temporary = tempfile.TemporaryDirectory()
        self.addCleanup(temporary.cleanup)
        self.folder = pathlib.Path(temporary.name)
        (self.folder / "text").write_bytes(TEXT)

    def train(self, *flags):
        """One step at rate 0: its loss, and the weights as they were read."""
        out, document = self.folder / "out.safetensors", self.folder / "json"
        words = [sys.argv[1], "--model", "gpt", "--layers", LAYERS, "--width", WIDTH, "--heads", HEADS, "--context", CONTEXT, "--data",
                 self.folder / "text", "--batch", 1, "--steps", 1, "--lr", 0, "--save-weights", out, "--json", document, *flags]
        result = subprocess.run([str(word) for word in words], capture_output=True, text=True, check=False)
        self.assertEqual(result.returncode, 0, result.stderr)
        self.errors = result.stderr
        return json.loads(document.read_text())["steps"][0]["loss"], out

    def test_heads_that_are_not_gpt2s_are_pointed_out(self):
        names = shapes("", False)
        path = self.folder / "gpt2.safetensors"
        path.write_bytes(safetensors(names, make_values(names)))
        self.train("--weights", path)
        self.assertIn("does not say how many heads its model has; those of --width 8 are 4 wide", self.errors)

    def test_both_layouts_are_read_and_written(self):
        for prefix, masks in (("", True), ("transformer.", False)):
            names = shapes(prefix, masks)
            values = make_values(names)
            path = self.folder / "gpt2.safetensors"
            path.write_bytes(safetensors(names, values))
            loss, _ = self.train("--weights", path, "--dtype", "fp64")
            expected = Gpt2(names, values, prefix).loss(TEXT)
            self.assertAlmostEqual(loss, expected, delta=1e-12 * expected)
            _, out = self.train("--weights", path)
            written, metadata = read_safetensors(out)
            self.assertEqual(metadata.get("format"), "pt")
            wanted = {"transformer." + name[len(prefix):]: name for name in names if not name.endswith(".attn.bias")}
            self.assertEqual(set(written), set(wanted))
            for name, source in wanted.items():
                self.assertEqual(written[name], ("F32", names[source], values[source].tobytes()), name)
            # What it has written it reads.
            again, _ = self.train("--weights", out, "--dtype", "fp64")
            self.assertEqual(again, loss)


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    unittest.main(argv=sys.argv[:1])
