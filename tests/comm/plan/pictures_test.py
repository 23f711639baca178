#!/usr/bin/env python3
"""pictures_test.py RONDO_PLAN: every picture that rondo-plan --svg draws at 2, 4, 5 and 8 ranks, and docs/*.svg, can be read: text stays in
its box and on the page, no text lies on another one, nothing that is drawn later covers an arrow or a text, and no arrow crosses a box.
Text is measured in DejaVu Sans, by matplotlib; without it the exit status is 77: skipped."""
import functools
import importlib.util
import math
import os
import pathlib
import re
import subprocess
import sys
import unittest
import xml.etree.ElementTree as ElementTree

# Debian's python3-matplotlib belongs to the system's Python.
SYSTEM = "/usr/bin/python3"
HAS_MATPLOTLIB = importlib.util.find_spec("matplotlib") is not None
if not HAS_MATPLOTLIB and os.path.exists(SYSTEM) and os.path.realpath(sys.executable) != os.path.realpath(SYSTEM):
    os.execv(SYSTEM, [SYSTEM, *sys.argv])

ROOT = pathlib.Path(__file__).resolve().parents[3]
MARGIN = 3  # pixels between a text and the edge of its box or of the page
LINUX_FONT = "DejaVu Sans"


@functools.lru_cache(maxsize=None)
def font(bold):
    from matplotlib import font_manager, ft2font
    face = ft2font.FT2Font(font_manager.findfont(font_manager.FontProperties(family=LINUX_FONT, weight="bold" if bold else "normal"),
                                                 fallback_to_default=False))
    face.set_size(1000, 72)
    return face


@functools.lru_cache(maxsize=None)
def advance(char, bold):
    """In thousandths of the font's size."""
    return font(bold).load_char(ord(char), flags=2).linearHoriAdvance / 65536  # 2: FT_LOAD_NO_HINTING


class Text:
    def __init__(self, string, x, y, style):
        size = float(style["font-size"].removesuffix("px"))
        width = sum(advance(c, style.get("font-weight") == "bold") for c in string) * size / 1000
        left = x - {"start": 0, "middle": 0.5, "end": 1}[style.get("text-anchor", "start")] * width
        self.string, self.x, self.y = string, x, y
        self.box = (left, y - 0.76 * size, left + width, y + 0.24 * size)  # ascender and descender of the font

    def __str__(self):
        return "'%s' at %s" % (self.string, ", ".join("%.1f" % v for v in self.box))


def inside(inner, outer, margin):
    return (inner[0] >= outer[0] + margin and inner[1] >= outer[1] and inner[2] <= outer[2] - margin and inner[3] <= outer[3])


def overlap(a, b, slack=1):
    return a[0] < b[2] - slack and b[0] < a[2] - slack and a[1] < b[3] - slack and b[1] < a[3] - slack


def points_of(path):
    """Points at most about two pixels apart on a path of M, L, H, V and C."""
    tokens = re.findall(r"[MLHVC]|-?[\d.]+", path)
    points, at, command, i = [], (0.0, 0.0), None, 0
    while i < len(tokens):
        if tokens[i].isalpha():
            command, i = tokens[i], i + 1
        take = {"M": 2, "L": 2, "H": 1, "V": 1, "C": 6}[command]
        v, i = [float(t) for t in tokens[i:i + take]], i + take
        ends = {"H": lambda: [v[0], at[1]], "V": lambda: [at[0], v[0]]}.get(command, lambda: v)()
        curve = [at, *zip(ends[::2], ends[1::2])]
        if command == "M":
            curve = curve[1:]
        length = sum(math.dist(p, q) for p, q in zip(curve, curve[1:]))
        steps = max(1, int(length / 2))
        for k in range(steps + 1):
            row, t = curve, k / steps
            while len(row) > 1:  # de Casteljau
                row = [((1 - t) * p[0] + t * q[0], (1 - t) * p[1] + t * q[1]) for p, q in zip(row, row[1:])]
            points.append(row[0])
        at = curve[-1]
    return points


class Drawing:
    """What an SVG document draws, in its order: (kind, shape). Understands what rondo-plan and docs/ use, and refuses everything else."""

    def __init__(self, svg):
        tree = ElementTree.fromstring(svg)
        _, _, width, height = map(float, tree.get("viewBox").split())
        self.page, self.items, self.rules = (0, 0, width, height), [], {}
        self.families = set()
        for style in tree.findall(".//{*}style"):
            for names, body in re.findall(r"([^{}]+)\{([^}]*)\}", style.text):
                for name in names.split(","):
                    self.rules.setdefault(name.strip(), {}).update(self.declarations(body))
        self.walk(tree, {})

    @staticmethod
    def declarations(body):
        return {k.strip(): v.strip() for k, v in (d.split(":", 1) for d in body.split(";") if ":" in d)}

    def walk(self, element, inherited):
        tag = element.tag.split("}")[1]
        if tag in ("defs", "style", "title"):
            return
        style = dict(inherited)
        style.update({k: element.get(k) for k in ("font-size", "font-weight", "font-family", "text-anchor", "fill", "marker-end")
                      if element.get(k) is not None})
        style.update(self.rules.get(tag, {}))
        style.update(self.rules.get("." + element.get("class", ""), {}))
        style.update(self.declarations(element.get("style", "")))
        value = lambda name: float(element.get(name, 0))
        if tag == "text":
            self.families.add(style.get("font-family", ""))
            self.items.append(("text", Text("".join(element.itertext()), value("x"), value("y"), style)))
        elif tag == "rect" and not element.get("width").endswith("%"):
            self.items.append(("rect", (value("x"), value("y"), value("x") + value("width"), value("y") + value("height"))))
        elif tag == "circle":
            x, y, r = value("cx"), value("cy"), value("r")
            self.items.append(("circle", (x - r, y - r, x + r, y + r)))
        elif tag == "path":
            assert "marker-end" in style, "a path that is no arrow"
            self.items.append(("arrow", points_of(element.get("d"))))
        elif tag not in ("svg", "g", "line", "rect"):
            raise AssertionError("cannot read <%s>" % tag)
        for child in element:
            self.walk(child, style)

    def of(self, kind):
        return [(i, shape) for i, (k, shape) in enumerate(self.items) if k == kind]

    def faults(self):
        texts, rects, circles, arrows = map(self.of, ("text", "rect", "circle", "arrow"))
        rects = [(i, r) for i, r in rects if r != self.page]
        for family in self.families:
            if LINUX_FONT not in family or not family.endswith("sans-serif"):
                yield "font family '%s': Linux has %s; end with sans-serif" % (family, LINUX_FONT)
        for i, text in texts:
            if not inside(text.box, self.page, MARGIN):
                yield f"{text} leaves the page"
            around = [r for _, r in rects if r[0] < text.x < r[2] and r[1] < text.y < r[3]]
            if around and not inside(text.box, min(around, key=lambda r: (r[2] - r[0]) * (r[3] - r[1])), MARGIN):
                yield f"{text} leaves its box"
            if any(overlap(text.box, r) for k, r in rects + circles if k > i):
                yield f"{text} is covered"
            for k, r in rects + circles:
                if k < i and overlap(text.box, r) and not inside(text.box, r, 0) and r not in around:
                    yield f"{text} runs into the shape at {r}"
        for n, (_, a) in enumerate(texts):
            for _, b in texts[:n]:
                if overlap(a.box, b.box):
                    yield f"{a} lies on {b}"
        for i, points in arrows:
            end = points[-1]
            start = points[0]
            both = [r for _, r in rects if all(r[0] <= x <= r[2] and r[1] <= y <= r[3] for x, y in (start, end))]  # they surround it
            xs, ys = zip(*points)
            way = (min(xs), min(ys), max(xs), max(ys))
            # Its ends touch the edges of boxes.
            if any(overlap(way, r) and any(r[0] + 1 < x < r[2] - 1 and r[1] + 1 < y < r[3] - 1 for x, y in points)
                   for _, r in rects if r not in both):
                yield "the arrow to %.0f, %.0f crosses a box" % end
            if any(math.dist(end, ((c[0] + c[2]) / 2, (c[1] + c[3]) / 2)) < (c[2] - c[0]) / 2 for k, c in circles if k > i):
                yield "the head of the arrow to %.0f, %.0f is covered" % end


def run(*arguments):
    return subprocess.run([PLAN, *map(str, arguments)], capture_output=True, text=True, timeout=60, env={**os.environ, "RONDO_LINKS": "built-in"})


def draw(collective, algorithm, ranks, *more):
    """The picture, or None: there is no such algorithm. `ranks`: as rondo-plan's --ranks."""
    size = [] if collective == "barrier" else ["--size", 6720 if isinstance(ranks, str) else 640 * ranks]
    memory = "plain" if isinstance(ranks, str) else "library"
    done = run(collective, "--ranks", ranks, "--memory", memory, "--algorithm", algorithm, *size, "--svg", "-", *more)
    if done.returncode == 2 and re.search("there is no |share no memory", done.stderr):
        return None
    assert done.returncode == 0, (collective, algorithm, ranks, done.stderr)
    return done.stdout


def names(flag):
    """Those that the help lists beside a flag."""
    text = re.sub(r"\s+", " ", run("--help").stdout)
    return re.search(flag + r".*?((?:[a-z_-]+, )+[a-z_-]+)", text)[1].split(", ")


class Pictures(unittest.TestCase):
    def check(self, what, svg):
        with self.subTest(what):
            faults = list(Drawing(svg).faults())
            self.assertEqual([], faults[:3], f"{len(faults)} faults")

    def test_of_every_plan(self):
        drawn = 0
        for collective in names("COLLECTIVE"):
            for algorithm in names("cheapest:"):
                for ranks in 2, 4, 5, 8:
                    svg = draw(collective, algorithm, ranks) if algorithm != "auto" else None
                    if svg is None:
                        break
                    drawn += 1
                    self.check(f"{collective} by {algorithm}, {ranks} ranks", svg)
        self.assertGreaterEqual(drawn, 4 * 30)

    def test_of_every_plan_between_hosts(self):
        drawn = 0
        for collective in names("COLLECTIVE"):
            for algorithm in "hierarchical", "hierarchical-tree", "two-shot", "ring":
                for hosts in "1,1", "2x2", "1,3", "3x2", "2,1,4", "2x4":
                    svg = draw(collective, algorithm, hosts)
                    if svg is None:
                        break
                    drawn += 1
                    self.assertIn(f"on {3 if hosts in ('3x2', '2,1,4') else 2} hosts", svg)
                    self.check(f"{collective} by {algorithm}, hosts {hosts}", svg)
        self.assertGreaterEqual(drawn, 6 * 30)

    def test_of_the_documents(self):
        files = sorted((ROOT / "docs").glob("*.svg"))
        self.assertTrue(files)
        for file in files:
            self.check(file.name, file.read_text(encoding="utf-8"))

    def test_the_widths_that_the_layout_uses(self):
        """text_width.cpp's tables are those of the font."""
        source = (ROOT / "comm/plan/text_width.cpp").read_text(encoding="utf-8")
        for table, bold in ("kRegular", False), ("kBold", True):
            widths = [int(w) for w in re.search(table + r"\[\] = \{([^}]*)\}", source)[1].split(",")]
            self.assertEqual(len(widths), 95)
            for char, width in zip(map(chr, range(32, 127)), widths):
                self.assertAlmostEqual(width / 2.048, advance(char, bold), delta=0.5, msg=f"{table} '{char}'")


if __name__ == "__main__":
    if not HAS_MATPLOTLIB:
        print("pictures_test.py: skipped: needs matplotlib (apt install python3-matplotlib)")
        sys.exit(77)
    PLAN = sys.argv.pop(1)
    unittest.main()
