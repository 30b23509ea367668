// Pictures with uPlot: points and lines as they were computed, with cursor and zoom.

import { h } from "./dom.js";

const HEIGHT = 280;
const TALL = 360;
const SERIES = 8;
const FEW = 200; // points of a line that are marked
const dark = matchMedia("(prefers-color-scheme: dark)");

function colour(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
}

// The series on one axis x: each keeps its own points.
function joined(series) {
  const same = series.every((each) => each.x.length === series[0].x.length && each.x.every((x, i) => x === series[0].x[i]));
  if (same) return [series[0].x, ...series.map((each) => each.y)];
  // Points of one series at the same x each keep a place of their own.
  const every = new Map();
  const numbered = series.map((each) => {
    const met = new Map();
    return each.x.map((x) => {
      const number = met.get(x) ?? 0;
      met.set(x, number + 1);
      const key = `${x} ${number}`;
      every.set(key, { x, number });
      return key;
    });
  });
  const order = [...every.entries()].sort(([, a], [, b]) => a.x - b.x || a.number - b.number);
  const place = new Map(order.map(([key], i) => [key, i]));
  return [
    order.map(([, { x }]) => x),
    ...series.map((each, at) => {
      const column = new Array(order.length).fill(undefined);
      each.y.forEach((y, i) => (column[place.get(numbered[at][i])] = y));
      return column;
    }),
  ];
}

function drawBehind(u, spec) {
  const { ctx, bbox } = u;
  ctx.save();
  for (const band of spec.bands) {
    const from = Math.max(bbox.left, u.valToPos(band.start, "x", true));
    const to = Math.min(bbox.left + bbox.width, u.valToPos(band.end, "x", true));
    if (to <= from) continue;
    ctx.textAlign = "left";
    ctx.fillStyle = colour("band");
    ctx.fillRect(from, bbox.top, to - from, bbox.height);
    ctx.fillStyle = colour("muted");
    ctx.font = `${11 * devicePixelRatio}px ${colour("font")}`;
    ctx.fillText(band.text, from + 4 * devicePixelRatio, bbox.top + 14 * devicePixelRatio, Math.max(to - from, 120));
  }
  ctx.textAlign = "left";
  ctx.textBaseline = "alphabetic";
  for (const rule of spec.rules) {
    ctx.strokeStyle = ctx.fillStyle = colour("rule");
    ctx.lineWidth = devicePixelRatio;
    ctx.setLineDash([5 * devicePixelRatio, 4 * devicePixelRatio]);
    ctx.beginPath();
    const at = u.valToPos(rule.at, rule.upright ? "x" : "y", true);
    const inside = rule.upright
      ? at >= bbox.left && at <= bbox.left + bbox.width
      : at >= bbox.top && at <= bbox.top + bbox.height;
    if (!inside) continue;
    if (rule.upright) {
      ctx.moveTo(at, bbox.top);
      ctx.lineTo(at, bbox.top + bbox.height);
    } else {
      ctx.moveTo(bbox.left, at);
      ctx.lineTo(bbox.left + bbox.width, at);
    }
    ctx.stroke();
    ctx.font = `${11 * devicePixelRatio}px ${colour("font")}`;
    const gap = 4 * devicePixelRatio;
    if (rule.upright) ctx.fillText(rule.text, at + gap, bbox.top + bbox.height - gap);
    else ctx.fillText(rule.text, bbox.left + gap, at - gap);
  }
  ctx.restore();
}

// What uPlot has no shape for: crosses, and arrows at the upper edge for what lies beyond it.
function drawMarks(u, spec, colours) {
  const { ctx, bbox } = u;
  const arm = 3.5 * devicePixelRatio;
  ctx.save();
  ctx.beginPath();
  ctx.rect(bbox.left, bbox.top, bbox.width, bbox.height);
  ctx.clip();
  ctx.lineWidth = 1.5 * devicePixelRatio;
  spec.series.forEach((series, place) => {
    ctx.strokeStyle = ctx.fillStyle = colours[place];
    if (series.mark === "cross") {
      ctx.beginPath();
      series.x.forEach((value, i) => {
        if (series.y[i] === null) return;
        const [x, y] = [u.valToPos(value, "x", true), u.valToPos(series.y[i], "y", true)];
        ctx.moveTo(x - arm, y - arm);
        ctx.lineTo(x + arm, y + arm);
        ctx.moveTo(x + arm, y - arm);
        ctx.lineTo(x - arm, y + arm);
      });
      ctx.stroke();
    }
    series.y.forEach((value, i) => {
      if (value !== null) return;
      const x = u.valToPos(series.x[i], "x", true);
      ctx.beginPath();
      ctx.moveTo(x, bbox.top);
      ctx.lineTo(x - arm, bbox.top + 2 * arm);
      ctx.lineTo(x + arm, bbox.top + 2 * arm);
      ctx.fill();
    });
  });
  ctx.restore();
}

function options(spec, colours, width, hooks, logarithmic) {
  const few = spec.series.every((series) => series.x.length <= FEW);
  const axis = (label, extra) => ({
    label,
    labelSize: 22,
    labelFont: `12px ${colour("font")}`,
    font: `11px ${colour("font")}`,
    stroke: colour("muted"),
    grid: { stroke: colour("grid"), width: 1 },
    ticks: { stroke: colour("grid"), width: 1, size: 4 },
    ...extra,
  });
  const zero = (u, low, high) => (high === null || high <= 0 ? [0, 1] : [0, high * 1.06]);
  return {
    width,
    height: spec.tall ? TALL : HEIGHT,
    legend: { show: false },
    cursor: { drag: { x: true, y: false, dist: 5 }, focus: { prox: 16 }, points: { size: 7 } },
    focus: { alpha: 0.35 },
    scales: {
      x: { time: false, distr: spec.x_logarithmic ? 3 : 1 },
      y: logarithmic ? { distr: 3 } : { range: zero },
    },
    axes: [axis(spec.x_axis, { size: 34 }), axis(spec.y_axis, { size: 56 })],
    series: [
      {},
      ...spec.series.map((series, place) => ({
        label: series.name,
        stroke: colours[place],
        width: 1,
        spanGaps: true,
        paths: series.line ? undefined : () => null,
        points: {
          show: series.mark !== "cross" && (!series.line || few),
          size: (series.size ?? 2) * 1.6 + 1,
          width: 1,
          stroke: colours[place],
          fill: series.mark === "ring" ? colour("surface") : colours[place],
        },
      })),
    ],
    hooks,
  };
}

const number = (value) => (value === null || value === undefined ? "–" : String(Number(value.toPrecision(5))));

// A figure with its picture, its legend with the values at the cursor, and buttons for those who use no mouse.
export function chart(spec) {
  const holder = h("div", { class: "canvas", role: "img", "aria-label": spec.label });
  const values = spec.series.map(() => h("span", { class: "at-cursor" }));
  const swatches = spec.series.map(() => h("span", { class: "swatch", "aria-hidden": "true" }));
  const at = h("span", { class: "at-cursor" });
  let plot = null;
  let data = null;
  let logarithmic = spec.y_logarithmic;

  function draw() {
    const width = holder.clientWidth;
    if (!width) return;
    const kept = plot ? { min: plot.scales.x.min, max: plot.scales.x.max } : null;
    plot?.destroy();
    const colours = spec.series.map((_, place) => colour(`series-${(place % SERIES) + 1}`));
    swatches.forEach((swatch, place) => (swatch.style.background = colours[place]));
    // The ends of the range are places without a value, so that the whole and each zoom know them.
    const ends = spec.x_range ? [{ x: spec.x_range, y: [] }] : [];
    data ??= joined([...spec.series, ...ends]).slice(0, spec.series.length + 1);
    const hooks = {
      drawAxes: [(u) => drawBehind(u, spec)],
      draw: [(u) => drawMarks(u, spec, colours)],
      setCursor: [
        (u) => {
          const place = u.cursor.idx;
          at.textContent = place === null || place === undefined ? "" : number(u.data[0][place]);
          values.forEach((value, i) => {
            value.textContent = place === null || place === undefined ? "" : number(u.data[i + 1][place]);
          });
        },
      ],
    };
    plot = new uPlot(options(spec, colours, width, hooks, logarithmic), data, holder);
    if (kept && kept.min !== null && kept.min !== undefined) plot.setScale("x", kept);
  }

  function zoom(factor) {
    if (!plot) return;
    const { min, max } = plot.scales.x;
    const [first, last] = [data[0][0], data[0][data[0].length - 1]];
    const middle = (min + max) / 2;
    const half = ((max - min) / 2) * factor;
    plot.setScale("x", { min: Math.max(first, middle - half), max: Math.min(last, middle + half) });
  }

  const whole = () => plot?.setScale("x", { min: data[0][0], max: data[0][data[0].length - 1] });
  const button = (text, label, act) =>
    h("button", { type: "button", class: "quiet", "aria-label": label, onclick: act }, text);
  const scale = h("button", { type: "button", class: "quiet", "aria-pressed": String(logarithmic) }, "Log");
  scale.addEventListener("click", () => {
    logarithmic = !logarithmic;
    scale.setAttribute("aria-pressed", String(logarithmic));
    draw();
  });
  new ResizeObserver(() => {
    if (plot === null) draw();
    else if (Math.abs(plot.width - holder.clientWidth) > 1 && holder.clientWidth) {
      plot.setSize({ width: holder.clientWidth, height: plot.height });
    }
  }).observe(holder);
  dark.addEventListener("change", draw);
  return h(
    "figure",
    { class: "chart" },
    h(
      "figcaption",
      {},
      h("span", { class: "chart-title" }, spec.title),
      h(
        "span",
        { class: "legend" },
        h("span", { class: "key" }, `${spec.x_axis} `, at),
        spec.series.map((series, i) => h("span", { class: "key" }, swatches[i], ` ${series.name} `, values[i])),
      ),
      h(
        "span",
        { class: "tools" },
        scale,
        button("+", "Zoom in", () => zoom(0.5)),
        button("−", "Zoom out", () => zoom(2)),
        button("Whole", "Show the whole", whole),
      ),
    ),
    holder,
    spec.notes.map((note) => h("p", { class: "note" }, note)),
  );
}
