"""Draws the cases of a report, one chart per collective: microseconds over bytes, log-log, one line per contender."""

from __future__ import annotations

import math
from html import escape
from pathlib import Path

COLORS = {
    "accord": "#1f5fa8",
    "openmpi": "#c2571a",
    "gloo": "#8a8a8a",
    "vllm": "#8a3f97",
    "deepspeed": "#3a8a3a",
    "bound private": "#222222",
    "bound shared": "#999900",
}
OTHERS = ("#b0304f", "#1f5fa8", "#3a8a3a", "#8a3f97")
WIDTH, HEIGHT, LEFT, ABOVE, BELOW, COLUMNS = 420, 240, 74, 50, 50, 2


def points_of(lines: list[dict]) -> dict[str, dict[str, list[tuple[int, float]]]]:
    """Returns bytes and microseconds by collective and contender."""
    charts: dict[str, dict[str, list[tuple[int, float]]]] = {}
    for line in lines:
        collective, size, *_, ranks = line["case"].split()
        if ranks != "2" or int(size) == 0:
            continue
        values = {"accord": line["accord"], **line["peers"], **line["bounds"]}
        for name, value in values.items():
            charts.setdefault(collective, {}).setdefault(name, []).append((int(size), value))
    return charts


def chart(title: str, series: dict[str, list[tuple[int, float]]], left: int, top: int) -> str:
    sizes = [size for points in series.values() for size, _ in points]
    times = [time for points in series.values() for _, time in points]
    low, high = math.floor(math.log10(min(times))), math.ceil(math.log10(max(times)))
    first, last = math.log2(min(sizes)), max(math.log2(max(sizes)), math.log2(min(sizes)) + 1)

    def x(size: float) -> float:
        return left + (math.log2(size) - first) / (last - first) * WIDTH

    def y(time: float) -> float:
        return top + (high - math.log10(time)) / max(high - low, 1) * HEIGHT

    out = [f'<text x="{left}" y="{top - 12}" font-size="15">{escape(title)}, us</text>']
    for power in range(low, high + 1):
        out.append(
            f'<line x1="{left}" x2="{left + WIDTH}" y1="{y(10**power):.1f}" y2="{y(10**power):.1f}" stroke="#ccc"/>'
        )
        out.append(f'<text x="{left - 6}" y="{y(10**power) + 4:.1f}" text-anchor="end">{10.0**power:g}</text>')
    for size in sorted(set(sizes)):
        text = f"{size >> 20}M" if size >= 1 << 20 else f"{size >> 10}k" if size >= 1 << 10 else str(size)
        out.append(f'<text x="{x(size):.1f}" y="{top + HEIGHT + 18}" text-anchor="middle">{text}</text>')
    for index, (name, points) in enumerate(series.items()):
        color = COLORS.get(name.removeprefix("predicted "), OTHERS[index // 2 % len(OTHERS)])
        dashed = ' stroke-dasharray="5 3"' if name.startswith(("bound", "predicted")) else ""
        path = " ".join(f"{x(size):.1f},{y(time):.1f}" for size, time in points)
        out.append(f'<polyline points="{path}" fill="none" stroke="{color}" stroke-width="1.6"{dashed}/>')
        for size, time in points:
            tip = f"{name}: {size} B, {time:.3f} us"
            out.append(
                f'<circle cx="{x(size):.1f}" cy="{y(time):.1f}" r="3" fill="{color}"><title>{escape(tip)}</title></circle>'
            )
        out.append(f'<text x="{left + 10}" y="{top + 18 + 15 * index}" fill="{color}">{escape(name)}</text>')
    out.append(f'<rect x="{left}" y="{top}" width="{WIDTH}" height="{HEIGHT}" fill="none" stroke="#888"/>')
    return "\n".join(out)


def write(title: str, lines: list[dict], path: Path) -> None:
    """Writes an SVG document of the lines of two ranks. Writes nothing if no case has a size."""
    draw(title, "two ranks of one host", points_of(lines), path)


def draw(title: str, subtitle: str, charts: dict[str, dict[str, list[tuple[int, float]]]], path: Path) -> None:
    """Writes an SVG document with a chart for each name: bytes and microseconds by series. Writes nothing without
    charts."""
    if not charts:
        return
    body = []
    for index, (name, series) in enumerate(charts.items()):
        column, row = index % COLUMNS, index // COLUMNS
        body.append(
            chart(name, series, LEFT + column * (WIDTH + LEFT + 10), 40 + ABOVE + row * (HEIGHT + ABOVE + BELOW))
        )
    width = COLUMNS * (WIDTH + LEFT + 10) + 20
    height = 40 + -(-len(charts) // COLUMNS) * (HEIGHT + ABOVE + BELOW)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" font-family="monospace" font-size="12">'
        f'<rect width="100%" height="100%" fill="#fff"/>\n<text x="16" y="24">accord bench: {escape(title)}, '
        f"{escape(subtitle)}</text>\n" + "\n".join(body) + "\n</svg>\n"
    )
    print(f"drawn in {path}")
