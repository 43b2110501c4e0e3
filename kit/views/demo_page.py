"""The page the demo writes: one file, no script, nothing from the network, light and dark."""

from __future__ import annotations

from dataclasses import dataclass

from kit import __version__
from kit.units import bytes_text, shape_text, time_text
from kit.views import markup
from kit.views.demo import Demo
from kit.views.form import View
from kit.views.stage_table import BlockRow, StageRow
from kit.views.theme import DARK, LIGHT
from kit.views.tokens import line_text, token_text

_STYLE = """
:root { color-scheme: light dark; --bg: #f6f8fa; --card: #ffffff; --ink: #1f2328; --muted: #59636e;
  --line: #d1d9e0; --accent: #0b5cad; --soft: #e7eff8; --good: #1a7f37; }
@media (prefers-color-scheme: dark) { :root { --bg: #0d1117; --card: #151b23; --ink: #e6edf3;
  --muted: #9198a1; --line: #2f3742; --accent: #58a6ff; --soft: #1b2838; --good: #3fb950; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--bg); color: var(--ink);
  font: 15px/1.55 system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", Arial, sans-serif; }
main { max-width: 1060px; margin: 0 auto; padding: 40px 20px 64px; }
header h1 { font-size: 15px; font-weight: 600; margin: 0; letter-spacing: .01em; }
header p { margin: 2px 0 0; color: var(--muted); }
.said { margin: 28px 0 8px; font-size: clamp(24px, 4.2vw, 38px); line-height: 1.25; font-weight: 600;
  letter-spacing: -.01em; white-space: pre-wrap; overflow-wrap: anywhere; }
.said span { color: var(--muted); font-weight: 400; }
.facts { display: grid; grid-template-columns: repeat(auto-fit, minmax(150px, 1fr)); gap: 12px; margin: 28px 0 8px; }
.facts div { background: var(--card); border: 1px solid var(--line); border-radius: 10px; padding: 12px 14px; }
.facts b { display: block; font-size: 20px; font-weight: 600; font-variant-numeric: tabular-nums; }
.facts span { color: var(--muted); font-size: 13px; }
section { background: var(--card); border: 1px solid var(--line); border-radius: 12px; padding: 20px 22px;
  margin-top: 20px; }
h2 { font-size: 18px; margin: 0 0 4px; }
section > p { margin: 0 0 14px; color: var(--muted); max-width: 72ch; }
img { display: block; max-width: 100%; height: auto; border-radius: 6px; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; font-size: 12.5px; }
th { font-weight: 600; text-align: left; }
th, td { padding: 2px 12px 2px 0; white-space: nowrap; }
.scroll { overflow-x: auto; }
.lens table { width: 100%; }
.stages { width: 100%; min-width: 640px; font-size: 13px; }
.line { display: grid; grid-template-columns: 6.5em 5em 7em 6em 6em 1fr; gap: 0 14px; padding: 4px 6px;
  align-items: center; white-space: nowrap; }
.line > :nth-child(3), .line > :nth-child(5) { text-align: right; }
.head { color: var(--muted); border-bottom: 1px solid var(--line); font-size: 12px; padding-left: 24px; }
details.block > summary { cursor: pointer; border-radius: 6px; display: flex; align-items: center; }
details.block > summary::before { content: "▸"; width: 18px; color: var(--muted); text-align: center; flex: none; }
details.block[open] > summary::before { content: "▾"; }
details.block > summary::-webkit-details-marker { display: none; }
details.block > summary > .line { flex: 1; }
details.block > summary:hover, .single:hover { background: var(--soft); }
details.block > div { padding: 2px 0 8px; margin-left: 18px; border-left: 2px solid var(--line); }
.single { padding-left: 24px; border-radius: 6px; }
.name { font-family: ui-monospace, Menlo, Consolas, monospace; font-size: 12.5px; }
.quiet { color: var(--muted); }
.says { display: grid; grid-template-columns: 9em 1fr 3.4em; gap: 10px; align-items: center; }
.says b { font-family: ui-monospace, Menlo, Consolas, monospace; font-size: 12.5px; overflow: hidden;
  text-overflow: ellipsis; }
.bar { height: 8px; border-radius: 4px; background: var(--line); overflow: hidden; }
.bar i { display: block; height: 100%; background: var(--accent); border-radius: 4px; }
.none { color: var(--good); font-weight: 600; }
details > summary { cursor: pointer; }
footer { color: var(--muted); font-size: 13px; margin-top: 28px; }
"""


@dataclass(frozen=True)
class DemoPage:
    """A self-contained HTML page of what the demo saw."""

    demo: Demo

    def html(self) -> str:
        """Return the page; every text from file, prompt or model is escaped."""
        body = "".join(
            (
                self._top(),
                self._lens(),
                self._stages(),
                self._attention(),
                self._memory(),
                self._file(),
                f"<footer>Written by kit {__version__}. This page is one file and loads nothing.</footer>",
            )
        )
        return (
            '<!doctype html><html lang="en"><head><meta charset="utf-8">'
            '<meta name="viewport" content="width=device-width, initial-scale=1">'
            f"<title>{markup.escape(self.demo.model)}: one pass, stage by stage</title>"
            f"<style>{_STYLE}</style></head><body><main>{body}</main></body></html>\n"
        )

    def _top(self) -> str:
        demo, answer = self.demo, self.demo.answer
        facts = (
            (time_text(demo.load_ns), "to open file and session"),
            (time_text(answer.time_ns), f"from prompt to answer, {answer.n_tokens} tokens"),
            (f"{len(demo.stages.rows)} stages", "to look into and to change"),
            (bytes_text(demo.bars.nbytes), "live while it ran"),
            (bytes_text(demo.left.nbytes), "live after close"),
        )
        cards = "".join(f"<div><b>{markup.escape(b)}</b><span>{markup.escape(s)}</span></div>" for b, s in facts)
        prompt, text = markup.escape(line_text(answer.prompt)), markup.escape(line_text(answer.text))
        return (
            f"<header><h1>kit demo</h1><p>{markup.escape(demo.file_line)}</p></header>"
            f'<p class="said"><span>{prompt}</span>{text}</p><div class="facts">{cards}</div>'
        )

    def _lens(self) -> str:
        lens = self.demo.lens
        return _section(
            "What each block would say next",
            "The logit lens: the residual after each block, put through the model's own last norm and output matrix. "
            "A column per token read, the last block on top; the brighter a cell, the surer. Point at a cell for its "
            "probability.",
            f'<div class="lens" style="max-width:{4 + 11 * len(lens.tokens)}em">{lens.table()}</div>',
        )

    def _stages(self) -> str:
        stages = self.demo.stages
        picture = _picture(stages)
        head = "".join(f"<span>{cell}</span>" for cell in ("stage", "stages", "time", "shape", "rms", "says next"))
        blocks = "".join(_block(block) for block in stages.blocks())
        listing = f'<div class="scroll"><div class="stages"><div class="line head">{head}</div>{blocks}</div></div>'
        return _section(
            f"One pass, all {len(stages.rows)} stages",
            "Where the time goes and how the residual grows, block by block; then every stage with its shape, the time "
            "to compute it, the root mean square of its values, and the likeliest next token where the lens can look. "
            "Unfold a block for its stages.",
            f"{picture}<div style='height:14px'></div>{listing}",
        )

    def _attention(self) -> str:
        return _section(
            "Attention",
            f"All heads of {self.demo.attention.stage.rsplit('.', 1)[0]}, the block whose last token looks around "
            "most. Each row sums to one.",
            _picture(self.demo.attention) + markup.details("what each head looks at", self.demo.attention.table()),
        )

    def _memory(self) -> str:
        demo = self.demo
        state = "none" if not demo.left else "left"
        return _section(
            "Memory",
            "Weights, cache, inputs and scratch for the largest pass are all taken when the session opens.",
            _picture(demo.bars)
            + f'<div class="scroll">{demo.bars.table()}</div>'
            + markup.details(f"all {len(demo.live)} resources", f'<div class="scroll">{demo.live._repr_html_()}</div>')
            + f'<p class="{state}" style="margin:14px 0 0">After close: {markup.escape(demo.left.text())}.</p>',
        )

    def _file(self) -> str:
        demo = self.demo
        return _section(
            "File and devices",
            "What the file says about itself, read without loading a weight, and the devices ggml sees.",
            f'<div class="scroll">{demo.file_html}</div><div style="height:14px"></div>'
            f'<div class="scroll">{demo.devices._repr_html_()}</div><p style="margin:14px 0 0" class="quiet">'
            f"{markup.escape(demo.session)}</p>",
        )


def _section(title: str, lead: str, content: str) -> str:
    return f"<section><h2>{markup.escape(title)}</h2><p>{markup.escape(lead)}</p>{content}</section>"


def _picture(view: View) -> str:
    return markup.still_pair(view.png(LIGHT), view.png(DARK), view.title, view.size()[0])


def _block(block: BlockRow) -> str:
    if len(block.rows) == 1:
        return f'<div class="line single">{_cells(block.last, block.name, "", block.time_ns())}</div>'
    inner = "".join(f'<div class="line">{_cells(row, row.part, "", row.time_ns)}</div>' for row in block.rows)
    cells = _cells(block.last, block.name, str(len(block.rows)), block.time_ns())
    return f'<details class="block"><summary><div class="line">{cells}</div></summary><div>{inner}</div></details>'


def _cells(row: StageRow, name: str, count: str, time_ns: int) -> str:
    says = "<span></span>"
    if row.says is not None and row.probability is not None:
        says = (
            f'<span class="says"><b>{markup.escape(token_text(row.says, 16))}</b>'
            f'<span class="bar"><i style="width:{row.probability:.1%}"></i></span>'
            f'<span class="quiet">{row.probability:.0%}</span></span>'
        )
    return (
        f'<span class="name" title="{markup.escape(row.name)}">{markup.escape(name)}</span>'
        f'<span class="quiet">{count}</span><span>{time_text(time_ns)}</span>'
        f'<span class="quiet">{shape_text(row.shape)}</span><span class="quiet">{row.rms:.4g}</span>{says}'
    )
