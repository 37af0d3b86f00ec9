"""The style sheet. Colours are told apart by people with any colour vision, light and dark."""

from __future__ import annotations

STYLE = """
:root{color-scheme:light dark;--page:#f6f7f9;--card:#fff;--ink:#1b2430;--dim:#576373;--rule:#e1e5ea;
--axis:#8a94a1;--good:#0b6e4f;--good-bg:#e0f3ea;--bad:#a23415;--bad-bg:#fbe9e2;--open:#6b5200;
--open-bg:#fbf1d0;--accent:#1f5fa8;--band:#1f5fa826;--loss:#8a94a11c;--live:#c2410c;
--c0:#1f5fa8;--c1:#c2410c;--c2:#0f766e;--c3:#9d2f86;--c4:#6b5b00;--c5:#4b5563}
@media(prefers-color-scheme:dark){:root{--page:#12161c;--card:#1a2029;--ink:#e6eaf0;--dim:#9aa6b5;
--rule:#2c3542;--axis:#6f7b8b;--good:#6fd3aa;--good-bg:#123528;--bad:#ff9d7a;--bad-bg:#432015;
--open:#f0cf6a;--open-bg:#3a3010;--accent:#7fb4f2;--band:#7fb4f233;--loss:#9aa6b51c;--live:#ff9a57;
--c0:#7fb4f2;--c1:#ff9a57;--c2:#4fd1bf;--c3:#e88bd3;--c4:#d9c24a;--c5:#b4bdc9}}
*{box-sizing:border-box}
body{margin:0;background:var(--page);color:var(--ink);line-height:1.5;
font:16px/1.5 system-ui,-apple-system,"Segoe UI",Roboto,"Noto Sans","DejaVu Sans",sans-serif}
main{max-width:1120px;margin:0 auto;padding:32px 24px 48px}
h1{font-size:1.9rem;line-height:1.2;margin:0;overflow-wrap:anywhere}
h2{font-size:1.25rem;margin:0 0 6px}h3{font-size:1rem;margin:18px 0 8px}
p{margin:0 0 12px;max-width:78ch;overflow-wrap:anywhere}
.dim{color:var(--dim)}.eyebrow{margin:0;color:var(--dim);font-size:.85rem;letter-spacing:.04em}
header>p.dim{margin:4px 0 16px;max-width:none;font-size:.92rem}
section,.card{background:var(--card);border:1px solid var(--rule);border-radius:10px;
padding:20px 22px;margin:0 0 18px}
.decision{border-left:6px solid var(--open)}.decision.good{border-left-color:var(--good)}
.decision.bad{border-left-color:var(--bad)}
.state{font-weight:700;margin:0 0 2px;color:var(--open)}.state.good{color:var(--good)}
.state.bad{color:var(--bad)}
.reason{font-size:1.3rem;line-height:1.35;margin:0}.reason.long{font-size:1.05rem;line-height:1.5;max-width:none}
.reason::first-letter{text-transform:uppercase}
.standings{list-style:none;margin:14px 0 0;padding:12px 0 0;border-top:1px solid var(--rule)}
.standings li{margin:4px 0;overflow-wrap:anywhere}
.mind{background:var(--open-bg);border-color:var(--open);padding:14px 22px}
.mind strong{color:var(--open)}.mind ul{margin:4px 0 0;padding-left:20px}
.mind li{overflow-wrap:anywhere}
.pill{display:inline-block;white-space:nowrap;border-radius:99px;padding:0 9px;font-size:.82rem;
font-weight:600;line-height:1.6;border:1px solid;color:var(--open);background:var(--open-bg)}
.pill.good{color:var(--good);background:var(--good-bg)}
.pill.bad{color:var(--bad);background:var(--bad-bg)}
.tiles{display:grid;grid-template-columns:repeat(auto-fit,minmax(165px,1fr));gap:14px;
margin:0 0 18px}
.tiles div{background:var(--card);border:1px solid var(--rule);border-radius:10px;
padding:12px 16px;display:flex;flex-direction:column-reverse;justify-content:flex-end}
.tiles dt{font-size:.9rem;font-weight:600}.tiles dd{margin:0;display:contents}
.tiles b{order:2;font-size:1.6rem;line-height:1.2;font-variant-numeric:tabular-nums}
.tiles .dim{order:-1;font-size:.82rem;line-height:1.35}
table{border-collapse:collapse;font-size:.88rem;font-variant-numeric:tabular-nums}
caption{text-align:left;color:var(--dim);padding:6px 0}
th,td{text-align:left;vertical-align:top;padding:6px 12px 6px 0;border-bottom:1px solid var(--rule);
overflow-wrap:anywhere}
.numbers th,.numbers td{white-space:nowrap}.facts th{overflow-wrap:normal}.facts td{max-width:70ch}
thead th{color:var(--dim);font-weight:600}tbody th{font-weight:600}
.cards{width:100%}.cards td,.cards th{overflow-wrap:break-word}
.cards td:last-child{min-width:24ch}
.ends{display:block;white-space:nowrap}.scroll{overflow-x:auto;margin-bottom:12px}
.scroll table{min-width:min(100%,460px)}
.scroll:focus-visible,summary:focus-visible{outline:2px solid var(--accent)}
details{margin-top:12px}summary{cursor:pointer;color:var(--accent);font-size:.9rem}
.panels{display:grid;gap:18px 22px;align-items:end}
.wide{grid-template-columns:repeat(auto-fit,minmax(min(100%,400px),1fr))}
.narrow{grid-template-columns:repeat(auto-fill,minmax(min(100%,290px),1fr))}
figure{margin:0;break-inside:avoid;max-width:600px}
figcaption{font-size:.9rem;margin-bottom:4px;overflow-wrap:anywhere}
.said{display:block;color:var(--dim);font-size:.84rem}
figure>svg,.key>svg{display:block;width:100%;height:auto;overflow:visible}.cut{overflow:hidden}
.key{max-width:470px;margin:6px 0 0}
text{fill:var(--dim);font-size:11.5px;font-variant-numeric:tabular-nums}text.label{fill:var(--ink)}
.rule{stroke:var(--rule)}.axis{stroke:var(--axis)}.line,.lead{fill:none;stroke-width:2}
.lead{stroke-width:1;opacity:.6}.unit{stroke:var(--ink);stroke-width:1.3}
.margin{stroke:var(--dim);stroke-dasharray:4 3}.loss{fill:var(--loss)}.band{fill:var(--band)}
.line.gain{stroke:var(--accent)}.dot{fill:var(--accent)}
.best{fill:none;stroke:var(--ink);stroke-width:1.8}
.whisker{fill:none;stroke-width:1.3}.whisker.gain{stroke:var(--accent)}
.whisker.live{stroke:var(--live);stroke-width:1.8}.point{fill:var(--live)}
.mark{stroke:var(--card);stroke-width:1}
.terms{display:grid;grid-template-columns:max-content 1fr;gap:6px 18px;margin:0}
.terms dt{font-weight:600}.terms dd{margin:0;max-width:75ch}
footer{color:var(--dim);font-size:.85rem}footer p{max-width:none}
code{font-family:ui-monospace,Consolas,"DejaVu Sans Mono",monospace;color:var(--ink)}
SERIES
@media screen and (max-width:860px){
.cards thead{position:absolute;clip-path:inset(50%);height:1px;overflow:hidden}
.cards,.cards tbody,.cards tr,.cards td,.cards th{display:block}
.cards tr{border-bottom:1px solid var(--rule);padding:8px 0}.cards tr:last-child{border:0}
.cards td,.cards th{border:0;padding:1px 0}
.cards td::before{content:attr(data-label);display:inline-block;width:10em;color:var(--dim)}
.ends{display:inline}.cards td:last-child::before{display:none}.cards td:last-child{margin-top:3px}}
@media screen and (max-width:560px){
main{padding:18px 12px}section,.card{padding:16px 14px}h1{font-size:1.5rem}
.reason{font-size:1.12rem}.terms{grid-template-columns:1fr;gap:0}.terms dd{margin-bottom:8px}
.tiles{grid-template-columns:1fr 1fr;gap:10px}.tiles div{padding:10px 12px}
.tiles b{font-size:1.3rem}.wide text{font-size:13px}}
@media print{:root{--page:#fff;font-size:12.5px}body{font-size:1rem}main{padding:0;max-width:none}
details{display:none}.wide{grid-template-columns:1fr 1fr}.narrow{grid-template-columns:1fr 1fr 1fr}
p,.key{break-after:avoid}
section,.card{padding:12px 14px;break-inside:auto;border-color:#bbb}
h2,h3{break-after:avoid}tr,.card{break-inside:avoid}
*{print-color-adjust:exact;-webkit-print-color-adjust:exact}}
""".replace(
    "SERIES\n",
    "".join(
        f".line.s{index},.lead.s{index},.whisker.s{index}{{stroke:var(--c{index})}}"
        f".mark.s{index}{{fill:var(--c{index})}}\n"
        for index in range(6)
    ),
)
