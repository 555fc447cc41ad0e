"""The report's style sheet: one set of colours for light pages, one for dark ones."""

STYLE = """
:root { color-scheme: light dark; --page: #fbfbfa; --card: #ffffff; --ink: #1d1c1a; --quiet: #63625d;
  --line: #e2e1dc; --blue: #2568b8; --on-blue: #ffffff; }
@media (prefers-color-scheme: dark) {
  :root { --page: #171716; --card: #201f1e; --ink: #f1f0ec; --quiet: #a8a7a0;
    --line: #3a3936; --blue: #6ea8ee; --on-blue: #10151c; }
}
* { box-sizing: border-box; }
body { margin: 0; background: var(--page); color: var(--ink);
  font: 15px/1.5 system-ui, "Segoe UI", "DejaVu Sans", sans-serif; }
main { max-width: 960px; margin: 0 auto; padding: 40px 24px 64px; }
h1 { font-size: 26px; line-height: 1.25; margin: 0 0 6px; }
h2 { font-size: 17px; margin: 0 0 2px; }
p { margin: 0 0 12px; }
.quiet { color: var(--quiet); }
.foot { margin-top: 24px; }
section, .tile { background: var(--card); border: 1px solid var(--line); border-radius: 8px; }
section { padding: 20px 24px; margin-top: 20px; }
.tiles { display: grid; grid-template-columns: repeat(auto-fit, minmax(170px, 1fr)); gap: 12px; margin-top: 24px; }
.tile { padding: 12px 16px; }
.tile b { display: block; font-size: 24px; line-height: 1.3; }
.tile span { color: var(--quiet); font-size: 13px; }
svg { display: block; width: 100%; min-width: 640px; height: auto; margin-top: 10px;
  font: 13px system-ui, "Segoe UI", "DejaVu Sans", sans-serif; }
svg text { fill: var(--ink); font-variant-numeric: tabular-nums; }
svg .axis { fill: var(--quiet); }
svg .strong { font-weight: 600; }
svg .value, svg .heat { font-size: 12px; }
svg .full { fill: var(--on-blue); }
@media (prefers-color-scheme: dark) { svg .middle { fill: var(--on-blue); } }
svg .grid { stroke: var(--line); stroke-width: 1; }
svg .bar, svg .cell { fill: var(--blue); }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; font-size: 14px; }
th, td { text-align: left; padding: 6px 16px 6px 0; border-bottom: 1px solid var(--line); white-space: nowrap; }
th { color: var(--quiet); font-weight: 500; }
tr:last-child td { border-bottom: 0; }
th:last-child, td:last-child { padding-right: 0; }
.right { text-align: right; }
pre { overflow-x: auto; margin: 8px 0 0; padding: 12px 14px; background: var(--page); border: 1px solid var(--line);
  border-radius: 6px; font: 13px/1.5 ui-monospace, "DejaVu Sans Mono", monospace; }
"""
