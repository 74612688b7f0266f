/**
 * One chart over time: a figure with a key, the plot, and the same numbers as a table.
 *
 * uPlot draws; what it draws is also said. The plot is a slider over time: with the arrow keys, Home and End each point is
 * read out, and the key shows the values there. The table is made when it is opened. Colours are the page's own, read when
 * something is drawn, so that a dark page has a dark chart.
 */

import { arrange, el } from "./dom.js";
import uPlot from "./uplot.js";

const HEIGHT = 180;
const DASHES = [[], [7, 4], [2, 3], [9, 3, 2, 3]];
const BAR_MIN = 3;
const BAR_MAX = 14;

/** @typedef {(number | null)[]} Column */
/**
 * @typedef {object} Kind
 * @property {string} title
 * @property {(value: number) => string} format
 * @property {"lines" | "stack" | "bars"} shape lines of their own; areas, or bars, on top of each other
 * @property {number[]} [steps] what may lie between two lines of the grid
 * @property {string} [empty] what is said where there is no column at all
 */

const clock = new Intl.DateTimeFormat("en-GB", { hour: "2-digit", minute: "2-digit" });
const exact = new Intl.DateTimeFormat("en-GB", { hour: "2-digit", minute: "2-digit", second: "2-digit" });

/** @param {number} seconds Unix time */
const at = (seconds) => exact.format(seconds * 1000);

export class Chart {
  /** @type {number[]} */ times = [];
  /** @type {[string, Column][]} */ columns = [];
  /** @type {uPlot | null} */ plot = null;
  shown = -1; // the point that the key shows; -1: the newest

  /** @param {Kind} kind */
  constructor(kind) {
    this.kind = kind;
    this.key = el("ul", { class: "chart-key" });
    this.when = el("span", { class: "chart-when" });
    this.box = el("div", {
      class: "chart-plot", role: "slider", tabindex: 0, "aria-label": `${kind.title} over time`, "aria-valuemin": 0,
      keydown: (event) => this.step(event), blur: () => this.point(-1),
    });
    this.table = el("div", { class: "scroll", role: "group", "aria-label": `${kind.title}, as a table`, tabindex: 0 });
    this.details = el("details", { toggle: () => this.fill() }, el("summary", {}, "As a table"), this.table);
    this.nothing = el("p", { class: "fine", hidden: true }, kind.empty ?? "Nothing was measured in this time.");
    this.ink = el("span", { hidden: true });
    this.root = el("figure", { class: "chart" },
      el("figcaption", {}, el("h3", {}, kind.title), this.when), this.key, this.box, this.nothing, this.details, this.ink);
    new ResizeObserver(() => this.resize()).observe(this.box);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.plot?.redraw(false));
  }

  /** @param {number[]} times @param {[string, Column][]} columns by what they are called */
  show(times, columns) {
    const names = (/** @type {[string, Column][]} */ of) => of.map(([name]) => name).join("\n");
    const same = this.plot !== null && names(columns) === names(this.columns);
    [this.times, this.columns] = [times, columns];
    const empty = columns.length === 0;
    this.box.hidden = this.details.hidden = empty;
    this.nothing.hidden = !empty;
    if (!same) this.rebuild();
    else this.plot?.setData(this.drawn());
    this.box.setAttribute("aria-valuemax", String(Math.max(0, times.length - 1)));
    if (this.shown >= times.length) this.shown = -1;
    this.say();
    this.fill();
  }

  /** As uPlot takes them: what lies on top of others comes first, and is drawn first. @returns {any} */
  drawn() {
    if (this.kind.shape === "lines") return [this.times, ...this.columns.map(([, column]) => column)];
    const sums = /** @type {number[]} */ (this.times.map(() => 0));
    const piled = this.columns.map(([, column]) => column.map((value, index) => {
      if (value === null) return null;
      return (sums[index] = (sums[index] ?? 0) + value);
    }));
    return [this.times, ...piled.reverse()];
  }

  rebuild() {
    this.plot?.destroy();
    this.plot = null;
    if (this.columns.length === 0) return;
    const order = this.columns.map((_, index) => index);
    if (this.kind.shape !== "lines") order.reverse();
    const soft = () => this.colour("--soft");
    const lines = () => ({ stroke: () => this.colour("--line"), width: 1 });
    this.plot = new uPlot({
      width: Math.max(200, this.box.clientWidth),
      height: HEIGHT,
      legend: { show: false },
      cursor: { y: false, drag: { x: false, y: false }, sync: { key: "load" } },
      scales: { y: { range: (_, __, most) => [0, most > 0 ? most * 1.05 : 1] } },
      axes: [
        { stroke: soft, grid: lines(), ticks: lines(), space: 60, values: (_, splits) => splits.map((split) => clock.format(split * 1000)) },
        { stroke: soft, grid: lines(), ticks: lines(), size: 62, space: 34, incrs: this.kind.steps, values: (_, splits) => splits.map((split) => this.kind.format(split)) },
      ],
      series: [{}, ...order.map((index) => this.series(index))],
      hooks: { setCursor: [(plot) => this.pointed(plot)] },
    }, this.drawn(), this.box);
    for (const canvas of this.box.querySelectorAll("canvas")) canvas.setAttribute("aria-hidden", "true");
  }

  /** @param {number} index of a column @returns {uPlot.Series} */
  series(index) {
    const stroke = () => this.colour(`--chart-${index + 1}`);
    if (this.kind.shape === "bars") {
      const paths = uPlot.paths.bars?.({ size: [0.9, BAR_MAX, BAR_MIN] });
      return { stroke, fill: stroke, width: 0, paths, points: { show: false } };
    }
    if (this.kind.shape === "stack") return { stroke, fill: stroke, width: 1, points: { show: false } };
    return { stroke, width: 2, dash: DASHES[index], points: { size: 5, filter: (plot, series) => alone(/** @type {Column} */ (plot.data[series])) } };
  }

  /** As a canvas takes it: the property itself may say two, one for each scheme. @param {string} name of a custom property */
  colour(name) {
    this.ink.style.color = `var(${name})`;
    return getComputedStyle(this.ink).color;
  }

  resize() {
    const width = this.box.clientWidth;
    if (width > 0 && this.plot !== null && Math.abs(this.plot.width - width) > 1) this.plot.setSize({ width, height: HEIGHT });
  }

  // -- one point ----------------------------------------------------------------------------------------------------------

  /** @param {uPlot} plot */
  pointed(plot) {
    this.shown = plot.cursor.idx ?? -1;
    this.say();
  }

  /** @param {KeyboardEvent} event */
  step(event) {
    const last = this.times.length - 1;
    const from = this.shown < 0 ? last : this.shown;
    const page = Math.max(1, Math.round(last / 10));
    const to = { ArrowLeft: from - 1, ArrowDown: from - 1, ArrowRight: from + 1, ArrowUp: from + 1, PageDown: from - page, PageUp: from + page, Home: 0, End: last }[event.key];
    if (to === undefined) return;
    event.preventDefault();
    this.point(Math.min(last, Math.max(0, to)));
  }

  /** @param {number} index of a point, or -1 for none */
  point(index) {
    const time = this.times[index];
    if (this.plot === null) return;
    this.plot.setCursor(time === undefined ? { left: -10, top: -10 } : { left: this.plot.valToPos(time, "x"), top: 1 }, false);
    this.shown = time === undefined ? -1 : index;
    this.say();
  }

  /** What the key and the slider say. */
  say() {
    const index = this.shown < 0 ? this.times.length - 1 : this.shown;
    const time = this.times[index];
    const values = this.columns.map(([name, column], place) => /** @type {[string, string, number]} */ ([name, this.text(column[index]), place]));
    this.when.textContent = time === undefined || values.length === 0 ? "" : this.shown < 0 ? "latest" : at(time);
    arrange(this.key, values.map(([name, value, place]) => el("li", {}, el("span", { class: `swatch ${this.kind.shape} chart-${place + 1}`, "aria-hidden": "true" }), `${name} `, el("b", {}, value))));
    this.box.setAttribute("aria-valuenow", String(Math.max(0, index)));
    this.box.setAttribute("aria-valuetext", time === undefined ? "nothing" : `${at(time)}: ${values.map(([name, value]) => `${name} ${value}`).join(", ")}`);
  }

  /** @param {number | null | undefined} value */
  text(value) {
    return value === null || value === undefined ? "–" : this.kind.format(value);
  }

  fill() {
    if (!this.details.open) return;
    const lines = this.times.map((time, index) => [time, index]).reverse()
      .filter(([, index]) => this.columns.some(([, column]) => column[index ?? 0] !== null))
      .map(([time, index]) => el("tr", {}, el("th", { scope: "row" }, at(time ?? 0)),
        ...this.columns.map(([, column]) => el("td", { class: "number" }, this.text(column[index ?? 0])))));
    const head = el("tr", {}, el("th", { scope: "col" }, "Until"), ...this.columns.map(([name]) => el("th", { scope: "col", class: "number" }, name)));
    const scrolled = this.table.scrollTop;
    this.table.replaceChildren(el("table", {}, el("thead", {}, head), el("tbody", {}, ...lines)));
    this.table.scrollTop = scrolled;
  }
}

/** Points with nothing on either side, which a line would not show. @param {Column} column @returns {number[]} */
export function alone(column) {
  return column.flatMap((value, index) => ((value ?? null) !== null && (column[index - 1] ?? null) === null && (column[index + 1] ?? null) === null ? [index] : []));
}
