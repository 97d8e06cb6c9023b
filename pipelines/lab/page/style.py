"""How the page looks. Colours of arms differ in lightness too, and every arm has a marker of its own."""

STYLE = """
:root{--ink:#1c2430;--soft:#5b6675;--paper:#fff;--card:#f5f7f9;--line:#d5dbe2;--good:#17693a;--bad:#a4262c;
--warn:#8a5a00;
--a0:#1b4b8f;--a1:#c2410c;--a2:#2e7d4f;--a3:#7c3aa8;--a4:#0f7f8b;--a5:#9a6b00;--a6:#b03070;--a7:#555f6b;
color-scheme:light dark}
@media (prefers-color-scheme:dark){:root{--ink:#e6eaf0;--soft:#9eabbb;--paper:#12161c;--card:#1b2129;--line:#37414d;
--good:#6fd08c;--bad:#ff8f8a;--warn:#f0c060;--a0:#79aef5;--a1:#ff9d6b;--a2:#74d29b;--a3:#c79bf0;--a4:#62ced9;
--a5:#e0b84a;
--a6:#f391bf;--a7:#b3bdc9}}
*{box-sizing:border-box}
html{font:16px/1.5 system-ui,-apple-system,"Segoe UI",Roboto,sans-serif;scroll-padding-top:1rem}
body{margin:0;background:var(--paper);color:var(--ink)}
main,header,footer{max-width:62rem;margin:0 auto;padding:0 1rem}
a{color:var(--a0)}
a:focus-visible,summary:focus-visible,[tabindex]:focus-visible{outline:3px solid var(--a1);outline-offset:2px}
.skip{position:absolute;left:-99rem}
.skip:focus{left:1rem;top:1rem;background:var(--paper);padding:.5rem 1rem;z-index:1}
h1{font-size:1.15rem;margin:1.2rem 0 .2rem;font-weight:600}h2{font-size:1.3rem;margin:2.6rem 0 .6rem}
h3{font-size:1.05rem;margin:1.4rem 0 .4rem}.soft{color:var(--soft)}p{max-width:46rem}
nav ul{display:flex;flex-wrap:wrap;gap:.3rem 1rem;list-style:none;padding:0;margin:.6rem 0}
.verdict{background:var(--card);border-left:.4rem solid var(--soft);padding:.8rem 1rem;margin:.8rem 0;
border-radius:.3rem}
.verdict.ship{border-color:var(--good)}.verdict.stay{border-color:var(--bad)}
.verdict.undecided{border-color:var(--warn)}
.verdict .word{font-weight:700;letter-spacing:.02em}.ship .word{color:var(--good)}.stay .word{color:var(--bad)}
.undecided .word{color:var(--warn)}.verdict p.said{font-size:1.25rem;line-height:1.35;margin:.2rem 0 .6rem}
.facts{display:grid;grid-template-columns:repeat(auto-fit,minmax(11rem,1fr));gap:.5rem 1.2rem;margin:0}
.facts dt{color:var(--soft);font-size:.85rem}.facts dd{margin:0;font-variant-numeric:tabular-nums}
.finding{border-left:.4rem solid var(--soft);background:var(--card);padding:.5rem .9rem;margin:.5rem 0;
border-radius:.3rem}
.finding.stop{border-color:var(--bad)}.finding.warn{border-color:var(--warn)}.finding p{margin:.1rem 0}
.scroll{overflow-x:auto;margin:.6rem 0}
table{border-collapse:collapse;font-size:.9rem;font-variant-numeric:tabular-nums}
caption{text-align:left;color:var(--soft);font-size:.85rem;padding:.2rem 0}
th,td{padding:.25rem .7rem .25rem 0;border-bottom:1px solid var(--line);text-align:right;white-space:nowrap}
th:first-child{text-align:left;font-weight:500}thead th{color:var(--soft);font-weight:600}
details{margin:.4rem 0}summary{cursor:pointer;color:var(--soft);padding:.15rem 0}
figure{margin:.8rem 0}figcaption{font-size:.9rem;color:var(--soft)}
.charts{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,26rem),1fr));gap:0 1.5rem}
svg{width:100%;height:auto;display:block;font-size:12px}svg text{fill:var(--ink)}svg .soft{fill:var(--soft)}
svg .axis{stroke:var(--line);stroke-width:1}svg .zero{stroke:var(--soft);stroke-width:1;stroke-dasharray:3 3}
.legend{display:flex;flex-wrap:wrap;gap:.1rem 1rem;list-style:none;padding:0;margin:.2rem 0;font-size:.9rem}
.legend svg{display:inline-block;width:1.4rem;height:1rem;vertical-align:middle;margin-right:.3rem}
pre{background:var(--card);padding:.7rem 1rem;overflow-x:auto;border-radius:.3rem;font-size:.85rem}
@media print{details:not([open])>*{display:block}nav,.skip{display:none}}
"""
