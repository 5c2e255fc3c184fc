// What part of the run is shown, and where things are on the canvas.

const AXIS_PX = 24;

class View {
  constructor(data) {
    this.data = data;
    this.from = 0;
    this.length = Math.max(data.wholeDuration, 1);
    this.whole = this.length;
    this.labelsPx = 148;
    this.width = 800;
    this.height = 300;
    this.scroll = 0;
    this.layOutRows();
  }

  layOutRows() {
    const rows = this.data.rows;
    this.rowPx = rows.length <= 24 ? 24 : rows.length <= 80 ? 18 : 14;
    let y = AXIS_PX + 4;
    rows.forEach((row, index) => {
      const isFirst = index === 0 || rows[index - 1].rank !== row.rank;
      if (isFirst && index > 0) y += 8;
      row.isFirstOfRank = isFirst;
      row.y = y;
      y += this.rowPx + 2;
    });
    this.contentHeight = y + 6;
  }

  get plotWidth() { return Math.max(this.width - this.labelsPx - 8, 50); }
  get pxPerNs() { return this.plotWidth / this.length; }
  xOf(time) { return this.labelsPx + (time - this.from) * this.pxPerNs; }
  timeAt(x) { return this.from + (x - this.labelsPx) / this.pxPerNs; }
  yOf(row) { return row.y - this.scroll; }

  show(from, length) {
    this.length = Math.min(Math.max(length, 50), this.whole);
    this.from = Math.min(Math.max(from, 0), this.whole - this.length);
  }

  zoom(factor, time = this.from + this.length / 2) {
    const length = Math.min(Math.max(this.length / factor, 50), this.whole);
    this.show(time - (time - this.from) * (length / this.length), length);
  }

  pan(px) { this.show(this.from - px / this.pxPerNs, this.length); }

  rowAt(y) {
    return this.data.rows.find((row) => y + this.scroll >= row.y && y + this.scroll < row.y + this.rowPx + 2);
  }

  // The span under a point; a short one is also found a few pixels beside it.
  spanAt(x, y) {
    const row = this.rowAt(y);
    if (!row || x < this.labelsPx) return -1;
    const { start, duration } = this.data;
    const time = this.timeAt(x);
    const near = 3 / this.pxPerNs;
    let best = -1;
    let bestGap = Infinity;
    for (let i = firstEndingAfter(this.data, row, time - near); i < row.end && start[i] <= time + near; i++) {
      const gap = Math.max(start[i] - time, time - start[i] - duration[i], 0);
      if (gap < bestGap) [best, bestGap] = [i, gap];
      if (gap === 0) break;
    }
    return best;
  }

  rectOf(span) {
    const row = rowOfSpan(this.data, span);
    const x = this.xOf(this.data.start[span]);
    const width = this.data.duration[span] * this.pxPerNs;
    return { x, y: this.yOf(row), width, height: this.rowPx, waiting: this.data.waited[span] * this.pxPerNs };
  }

  reveal(span) {
    const { start, duration } = this.data;
    if (start[span] < this.from || start[span] + duration[span] > this.from + this.length) {
      this.show(start[span] + duration[span] / 2 - this.length / 2, this.length);
    }
  }

  // Round times about 110 px apart.
  ticks() {
    const rough = 110 / this.pxPerNs;
    const power = 10 ** Math.floor(Math.log10(rough));
    const step = [1, 2, 5, 10].map((digit) => digit * power).find((size) => size >= rough);
    const times = [];
    for (let i = Math.ceil(this.from / step); i * step <= this.from + this.length; i++) times.push(i * step);
    return { step, times };
  }
}

// Moments are written with as many digits as neighbours one step away need to differ.
function momentText(time, step) {
  const [unit, size] = [["s", 1e9], ["ms", 1e6], ["us", 1e3], ["ns", 1]].find(([, ns]) => time >= ns || ns === 1);
  if (time === 0) return "0";
  const decimals = Math.max(0, Math.ceil(Math.log10(size / step) - 1e-9));
  return `${(time / size).toFixed(decimals)} ${unit}`;
}
