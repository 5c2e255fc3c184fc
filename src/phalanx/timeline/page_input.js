// Mouse, keyboard, size and theme: everything that makes the page draw again.

class Page {
  constructor(data) {
    this.data = data;
    this.view = new View(data);
    this.marked = -1;
    for (const id of ["drawing", "overview", "rows", "spacer", "details", "window", "arrows"]) {
      this[id] = document.getElementById(id);
    }
    this.pen = this.drawing.getContext("2d", { alpha: false });
    this.overviewPen = this.overview.getContext("2d", { alpha: false });
    this.strip = document.createElement("canvas");  // the overview without the frame of what is shown
    this.makeLegend();
    this.listen();
    this.resize();
  }

  makeLegend() {
    const used = [...new Set(this.data.operation)].sort((a, b) => a - b);
    const names = used.map((index) => this.data.operations[index]);
    const entries = names.map((name) => [name, `--chip: var(--op-${name})`, ""]);
    if (this.data.waited.some((ns) => ns > 0)) entries.push(["waiting", "", "waiting"]);
    for (const [name, style, kind] of entries) {
      const entry = document.createElement("span");
      const chip = document.createElement("span");
      chip.className = `chip ${kind}`;
      chip.style.cssText = style;
      entry.append(chip, name);
      document.getElementById("legend").append(entry);
    }
  }

  resize() {
    const ratio = devicePixelRatio || 1;
    const { view } = this;
    this.theme = readTheme(this.data.operations, ratio);
    view.width = this.rows.clientWidth;
    view.labelsPx = labelsWidth(this.pen, view);
    this.rows.style.height = `${view.contentHeight + 2}px`;
    view.height = Math.min(this.rows.clientHeight, view.contentHeight);
    this.spacer.style.height = `${Math.max(view.contentHeight - view.height, 0)}px`;
    fit(this.drawing, view.width, view.height, ratio);
    fit(this.overview, view.width, 40, ratio);
    fit(this.strip, view.width, 40, ratio);
    drawOverview(this.strip.getContext("2d", { alpha: false }), view, this.theme, 40);
    this.draw();
  }

  redraw() {
    if (this.isWaiting) return;
    this.isWaiting = true;
    requestAnimationFrame(() => { this.isWaiting = false; this.draw(); });
  }

  draw() {
    const { view, theme } = this;
    view.scroll = this.rows.scrollTop;
    const numArrows = drawTimeline(this.pen, view, theme, this.marked);
    if (this.stretch) this.drawStretch(this.pen, this.stretch[0], this.stretch[1], AXIS_PX, view.height);
    this.drawFrame();
    const step = view.length / 1000;
    const shown = `${momentText(view.from, step)} to ${momentText(view.from + view.length, step)}`;
    this.window.textContent = this.data.numSpans === 0
      ? "No rank called anything." : `Shown: ${shown} (${durationText(view.length)})`;
    this.arrows.textContent = numArrows > MOST_ARROWS
      ? `${numArrows.toLocaleString("en")} messages in view: zoom in to see their arrows` : "";
  }

  drawFrame() {
    const { view, theme, overviewPen: pen } = this;
    pen.setTransform(1, 0, 0, 1, 0, 0);
    pen.drawImage(this.strip, 0, 0);
    pen.setTransform(theme.ratio, 0, 0, theme.ratio, 0, 0);
    if (view.length >= view.whole) return;
    const scale = view.plotWidth / view.whole;
    const left = view.labelsPx + view.from * scale;
    this.drawStretch(pen, left, left + view.length * scale, 0, 40);
  }

  drawStretch(pen, x0, x1, top, bottom) {
    const [left, right] = [Math.min(x0, x1), Math.max(x0, x1, Math.min(x0, x1) + 2)];
    pen.fillStyle = this.theme.text;
    pen.globalAlpha = 0.12;
    pen.fillRect(left, top, right - left, bottom - top);
    pen.globalAlpha = 1;
    pen.strokeStyle = this.theme.text;
    pen.lineWidth = 1.5;
    pen.strokeRect(left, top + 1, right - left, bottom - top - 2);
  }

  mark(span, x, y) {
    if (this.marked !== span) this.redraw();
    this.marked = span;
    showDetails(this.details, this.data, span, x, y);
  }

  listen() {
    new ResizeObserver(() => {
      if (this.rows.clientWidth !== this.view.width) this.resize();
    }).observe(this.rows);
    addEventListener("resize", () => this.resize());
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.resize());
    this.rows.addEventListener("scroll", () => this.redraw());
    this.listenToMouse();
    this.listenToOverview();
    document.addEventListener("keydown", (event) => this.onKey(event));
    const buttons = { "zoom-in": () => this.view.zoom(2), "zoom-out": () => this.view.zoom(0.5),
      "zoom-all": () => this.view.show(0, this.view.whole) };
    for (const [id, act] of Object.entries(buttons)) {
      document.getElementById(id).addEventListener("click", () => { act(); this.redraw(); });
    }
  }

  listenToMouse() {
    const canvas = this.drawing;
    let grip = null;
    canvas.addEventListener("pointerdown", (event) => {
      if (event.button !== 0) return;
      canvas.setPointerCapture(event.pointerId);
      grip = { x: event.offsetX };
      if (event.shiftKey) this.stretch = [event.offsetX, event.offsetX];
      canvas.classList.add("dragging");
    });
    canvas.addEventListener("pointermove", (event) => {
      if (grip && this.stretch) this.stretch[1] = event.offsetX;
      else if (grip) this.view.pan(event.offsetX - grip.x);
      if (!grip) return this.mark(this.view.spanAt(event.offsetX, event.offsetY), event.clientX, event.clientY);
      grip.x = event.offsetX;
      this.mark(-1);
      this.redraw();
    });
    const release = () => {
      if (this.stretch) this.zoomToStretch();
      grip = this.stretch = null;
      canvas.classList.remove("dragging");
      this.redraw();
    };
    canvas.addEventListener("pointerup", release);
    canvas.addEventListener("pointercancel", release);
    canvas.addEventListener("pointerleave", () => { if (!grip) this.mark(-1); });
    canvas.addEventListener("dblclick", (event) => {
      this.view.zoom(4, this.view.timeAt(event.offsetX));
      this.redraw();
    });
    canvas.addEventListener("wheel", (event) => this.onWheel(event), { passive: false });
  }

  zoomToStretch() {
    const [from, to] = this.stretch.map((x) => this.view.timeAt(x)).sort((a, b) => a - b);
    if ((to - from) * this.view.pxPerNs > 4) this.view.show(from, to - from);
  }

  onWheel(event) {
    const sideways = event.shiftKey ? event.deltaY || event.deltaX : event.deltaX;
    if (event.ctrlKey || event.metaKey) {
      this.view.zoom(Math.exp(-event.deltaY * 0.002), this.view.timeAt(event.offsetX));
    } else if (Math.abs(sideways) > (event.shiftKey ? 0 : Math.abs(event.deltaY))) {
      this.view.pan(-sideways);
    } else {
      return;  // up and down scroll the page
    }
    event.preventDefault();
    this.mark(-1);
    this.redraw();
  }

  listenToOverview() {
    let from = null;
    const timeAt = (event) => ((event.offsetX - this.view.labelsPx) / this.view.plotWidth) * this.view.whole;
    this.overview.addEventListener("pointerdown", (event) => {
      this.overview.setPointerCapture(event.pointerId);
      from = timeAt(event);
      if (this.view.length < this.view.whole) this.view.show(from - this.view.length / 2, this.view.length);
      this.redraw();
    });
    this.overview.addEventListener("pointermove", (event) => {
      if (from === null) return;
      const to = timeAt(event);
      if (Math.abs(to - from) > this.view.whole * 0.003) this.view.show(Math.min(from, to), Math.abs(to - from));
      this.redraw();
    });
    for (const end of ["pointerup", "pointercancel"]) this.overview.addEventListener(end, () => { from = null; });
  }

  onKey(event) {
    const isHere = event.target === this.drawing;
    if (event.ctrlKey || event.metaKey || event.altKey || (!isHere && event.target !== document.body)) return;
    const step = this.view.plotWidth / 8;
    const acts = event.shiftKey ? {
      ArrowLeft: () => this.step(-1), ArrowRight: () => this.step(1),
      ArrowUp: () => this.stepRow(-1), ArrowDown: () => this.stepRow(1),
    } : {
      ArrowLeft: () => this.view.pan(step), ArrowRight: () => this.view.pan(-step),
      0: () => this.view.show(0, this.view.whole), Home: () => this.view.show(0, this.view.whole),
      Enter: () => this.zoomToMarked(), Escape: () => this.mark(-1),
    };
    if (isHere && !event.shiftKey) {
      acts.ArrowUp = () => this.rows.scrollBy(0, -40);
      acts.ArrowDown = () => this.rows.scrollBy(0, 40);
    }
    const zooms = { "+": 1.5, "=": 1.5, "-": 1 / 1.5, _: 1 / 1.5 };
    if (zooms[event.key]) acts[event.key] = () => this.view.zoom(zooms[event.key]);
    if (!acts[event.key]) return;
    event.preventDefault();
    acts[event.key]();
    if (!event.shiftKey && event.key !== "Enter") this.mark(-1);
    this.redraw();
  }

  step(direction) {
    if (this.data.numSpans === 0) return;
    const [top] = this.data.rows;
    if (this.marked < 0) return this.markHere(Math.min(firstEndingAfter(this.data, top, this.view.from), top.end - 1));
    const row = rowOfSpan(this.data, this.marked);
    this.markHere(Math.min(Math.max(this.marked + direction, row.first), row.end - 1));
  }

  stepRow(direction) {
    if (this.marked < 0) return this.step(1);
    const row = this.data.rows[rowOfSpan(this.data, this.marked).index + direction];
    if (!row) return;
    const middle = this.data.start[this.marked] + this.data.duration[this.marked] / 2;
    this.markHere(Math.min(firstEndingAfter(this.data, row, middle), row.end - 1));
  }

  markHere(span) {
    const { view, rows } = this;
    view.reveal(span);
    const { y } = rowOfSpan(this.data, span);
    if (y < rows.scrollTop + AXIS_PX) rows.scrollTop = y - AXIS_PX - 4;
    else if (y + view.rowPx > rows.scrollTop + view.height) rows.scrollTop = y + view.rowPx + 6 - view.height;
    view.scroll = rows.scrollTop;
    const rect = view.rectOf(span);
    const box = this.drawing.getBoundingClientRect();
    const x = Math.min(Math.max(rect.x + Math.min(rect.width, 40), this.view.labelsPx), view.width);
    this.mark(span, box.left + x, box.top + rect.y + rect.height);
  }

  zoomToMarked() {
    if (this.marked < 0) return;
    const length = Math.max(this.data.duration[this.marked] * 3, 200);
    this.view.show(this.data.start[this.marked] - length / 3, length);
    this.markHere(this.marked);
  }
}

function fit(canvas, width, height, ratio) {
  canvas.width = Math.round(width * ratio);
  canvas.height = Math.round(height * ratio);
  canvas.style.height = `${height}px`;
}

readData().then((data) => {
  window.timelinePage = new Page(data);
  document.documentElement.dataset.ready = "";
}).catch((error) => {
  const text = typeof DecompressionStream === "undefined"
    ? "This browser is too old to unpack the timeline." : `The timeline can't be shown: ${error.message}`;
  document.getElementById("rows").textContent = text;
  throw error;
});
