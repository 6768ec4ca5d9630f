"""How the status pages look, the node's own and the cluster's: dark where the reader's system is dark."""

from __future__ import annotations

from typing import Final

PAGE_STYLE: Final = """
body{font:15px/1.45 system-ui,sans-serif;margin:2rem auto;max-width:64rem;padding:0 1rem}
body{color:#1c2733;background:#fbfcfd}
h1{font-size:1.35rem;margin:0}h2{font-size:1rem;margin:2rem 0 .5rem}
.muted{color:#64748b}
.cards{display:grid;grid-template-columns:repeat(auto-fit,minmax(11rem,1fr));gap:.8rem;margin:1.2rem 0}
.card{background:#fff;border:1px solid #dde4ea;border-radius:.5rem;padding:.7rem .9rem}
.card b{display:block;font-size:1.25rem;font-weight:600}
.badge{border-radius:1rem;padding:.1rem .7rem;font-size:.85rem;font-weight:600}
.ok{background:#dcf5e4;color:#12633a}.bad{background:#fde3e1;color:#8f1d14}
table{border-collapse:collapse;width:100%;background:#fff}th,td{padding:.35rem .6rem;border-bottom:1px solid #e6ebef}
th{text-align:left;font-weight:600}td.n,th.n{text-align:right;font-variant-numeric:tabular-nums}
.bar{height:.55rem;background:#e6ebef;border-radius:.3rem;overflow:hidden;margin-top:.4rem}
.bar i{display:block;height:100%;background:#3b7dd8}
.scroll{overflow-x:auto}nav{margin:0 0 1rem}nav a,nav b{margin-right:1rem}a{color:#2363b5}
.badge.off{background:#e6ebef;color:#475569}td.n,th.n{white-space:nowrap}code{font-size:.9em}code.value{overflow-wrap:anywhere}
.plots{display:grid;grid-template-columns:repeat(auto-fit,minmax(13rem,1fr));gap:.8rem;margin:1.2rem 0}
figure{margin:0;background:#fff;border:1px solid #dde4ea;border-radius:.5rem;padding:.7rem .9rem}
figcaption b{display:block;font-size:1.1rem;font-weight:600}figcaption .muted{font-size:.85rem}
figure svg{display:block;width:100%;height:4.4rem;margin-top:.3rem}
polyline{fill:none;stroke:#3b7dd8;stroke-width:1.6;vector-effect:non-scaling-stroke}
@media(max-width:600px){body{margin:1rem auto}.wide{display:none}.cards{grid-template-columns:1fr 1fr}
th,td{padding:.3rem .4rem}h1{overflow-wrap:anywhere}}
@media(prefers-color-scheme:dark){body{background:#12171c;color:#dbe3ea}
.card,table,figure{background:#1a2127;border-color:#2c363f}a{color:#7db1f2}.badge.off{background:#2c363f;color:#cbd5e1}
th,td{border-color:#2c363f}.bar{background:#2c363f}.muted{color:#94a3b8}
.ok{background:#143d28;color:#8fe0b0}.bad{background:#4a1f1c;color:#ffb4ab}}
"""
