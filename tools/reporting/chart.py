"""Line charts as SVG: legible at 400 px, direct labels, colours for light and dark themes on a transparent background.

A picture inside an <img> follows `prefers-color-scheme`, so one file serves both themes. At a width of 400 px text is
12 px high (25 of the 820 units of the view box).
"""
import math
from dataclasses import dataclass, field
from xml.sax.saxutils import escape

WIDTH, HEIGHT = 820, 540
TOP, BOTTOM = 66, 74
LABEL_STEP = 31  # least distance of two labels' baselines

# Names of colours, as (light, dark). The hues stay apart in the common forms of colour blindness.
COLOURS = {
    "blue": ("#0a5dc2", "#6cb0ff"),
    "orange": ("#b54708", "#f5a35c"),
    "green": ("#137a3a", "#56d07f"),
    "purple": ("#7a3fc0", "#c9a2ff"),
    "grey": ("#59636e", "#a2abb5"),
}
INK = {"ink": ("#1f2328", "#e6edf3"), "faint": ("#59636e", "#a2abb5"), "rule": ("#d1d9e0", "#3d444d")}


@dataclass
class Series:
    """A line: its points in data units, the text at its end, a colour of COLOURS; optionally dashes, a band, intervals."""
    label: str
    points: list
    colour: str
    dash: bool = False
    band: list = field(default_factory=list)  # points of the band's other edge
    bold: bool = False
    spans: list = field(default_factory=list)  # (low, high) of each point's y


@dataclass
class Axis:
    """Where values stand: ticks as (value, text), the range, linear or logarithmic."""
    low: float
    high: float
    ticks: list
    log: bool = False

    def share(self, value):
        if self.log:
            return math.log(value / self.low) / math.log(self.high / self.low)
        return (value - self.low) / (self.high - self.low)


@dataclass
class Chart:
    """A picture. `title` heads it and names what y is; `description` is read aloud in its place."""
    title: str
    x_title: str
    description: str
    x: Axis
    y: Axis
    series: list

    def left(self):
        """Room for the ticks of y."""
        return 24 + 16 * max(len(text) for _, text in self.y.ticks)

    def right(self):
        """Room for labels: 15.2 units a character of DejaVu Sans, the widest of the fonts named."""
        return 48 + 15.2 * max(len(s.label) + s.bold for s in self.series)


def _style():
    rules = {"light": [], "dark": []}
    for name, (light, dark) in {**COLOURS, **INK}.items():
        for theme, colour in (("light", light), ("dark", dark)):
            rules[theme].append(f".{name}{{stroke:{colour}}}.f-{name}{{fill:{colour}}}")
    return ("text{font-family:system-ui,-apple-system,'Segoe UI',Roboto,'DejaVu Sans',sans-serif;"
            "font-size:25px;stroke:none}"
            ".title{font-weight:600;font-size:28px}.bold{font-weight:600}.line{fill:none;stroke-width:4;"
            "stroke-linejoin:round;stroke-linecap:round}.lead{fill:none;stroke-width:1.5}.band{stroke:none;opacity:.25}"
            + "".join(rules["light"]) + "@media(prefers-color-scheme:dark){" + "".join(rules["dark"]) + "}")


def spread(wanted, least, low, high):
    """Positions near `wanted`, in its order, at least `least` apart and within [low, high] where they fit."""
    order = sorted(range(len(wanted)), key=lambda i: wanted[i])
    placed = [0.0] * len(wanted)
    groups = []  # (centre, members): neighbours that touch move together
    for i in order:
        groups.append([[i], wanted[i]])
        while True:
            members, centre = groups[-1]
            half = least * (len(members) - 1) / 2
            groups[-1][1] = centre = min(max(centre, low + half), high - half)
            if len(groups) < 2:
                break
            above, above_centre = groups[-2]
            if centre - half - (above_centre + least * (len(above) - 1) / 2) >= least:
                break
            joined = above + members
            groups[-2:] = [[joined, sum(wanted[m] for m in joined) / len(joined)]]
    for members, centre in groups:
        for n, i in enumerate(members):
            placed[i] = centre + least * (n - (len(members) - 1) / 2)
    return placed


class _Canvas:
    def __init__(self, chart):
        self.chart = chart
        self.left, self.right = chart.left(), WIDTH - chart.right()
        self.bottom = HEIGHT - BOTTOM
        self.out = []

    def at(self, point):
        return (self.left + self.chart.x.share(point[0]) * (self.right - self.left),
                self.bottom - self.chart.y.share(point[1]) * (self.bottom - TOP))

    def text(self, x, y, text, kind, anchor="start"):
        self.out.append(f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" class="{kind}">{escape(text)}</text>')

    def path(self, points, kind, extra=""):
        d = "M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in points)
        self.out.append(f'<path d="{d}" class="{kind}"{extra}/>')

    def axes(self):
        chart = self.chart
        self.text(10, 36, chart.title, "title f-ink")
        for value, text in chart.y.ticks:
            y = self.at((chart.x.low, value))[1]
            self.path([(self.left, y), (self.right, y)], "rule lead")
            self.text(self.left - 10, y + 9, text, "f-faint", "end")
        for value, text in chart.x.ticks:
            self.text(self.at((value, chart.y.low))[0], self.bottom + 31, text, "f-faint", "middle")
        self.text((self.left + self.right) / 2, HEIGHT - 10, chart.x_title, "f-faint", "middle")

    def line(self, s):
        points = [self.at(p) for p in s.points]
        if s.band:
            edge = [self.at(p) for p in s.band]
            d = "M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in points + edge[::-1]) + "Z"
            self.out.append(f'<path d="{d}" class="band f-{s.colour}"/>')
        self.path(points, f"line {s.colour}", ' stroke-dasharray="12 9"' if s.dash else "")
        for (x, _), (low, high) in zip(s.points, s.spans):
            self.path([self.at((x, low)), self.at((x, high))], f"lead {s.colour}")
        if not s.dash:
            for x, y in points:
                self.out.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="5.5" class="f-{s.colour}"/>')

    def labels(self):
        ends = [self.at(s.points[-1]) for s in self.chart.series]
        places = spread([y for _, y in ends], LABEL_STEP, TOP + 4, self.bottom)
        for s, (x, y), place in zip(self.chart.series, ends, places):
            begin = self.right + 34
            self.path([(x + 9, y), (begin - 16, place), (begin - 5, place)], f"lead {s.colour}")
            self.text(begin, place + 9, s.label, f"f-{s.colour}" + (" bold" if s.bold else ""))


def svg(chart):
    """The picture as text."""
    canvas = _Canvas(chart)
    canvas.axes()
    for s in sorted(chart.series, key=lambda s: s.bold):  # what stands out lies on top
        canvas.line(s)
    canvas.labels()
    return (f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}" '
            f'role="img" aria-labelledby="t d">\n<title id="t">{escape(chart.title)}</title>\n'
            f'<desc id="d">{escape(chart.description)}</desc>\n<style>{_style()}</style>\n'
            + "\n".join(canvas.out) + "\n</svg>\n")
