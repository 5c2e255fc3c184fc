// Drawing: every span that is wide enough by itself, the others summed up by pixel.

const MOST_ARROWS = 500;
const FONT = '12px system-ui, -apple-system, "Segoe UI", "Liberation Sans", sans-serif';

function readTheme(operations, ratio) {
  const style = getComputedStyle(document.documentElement);
  const color = (name) => style.getPropertyValue(`--${name}`).trim();
  const theme = { ratio };
  for (const name of ["panel", "text", "soft", "line", "faint", "accent", "warn", "arrow"]) theme[name] = color(name);
  theme.solid = operations.map((name) => color(`op-${name}`));
  theme.waiting = theme.solid.map((solid) => hatch(solid, theme.panel, ratio));
  theme.solidPixel = theme.solid.map((solid) => pixelOf(solid, theme.panel, 1));
  theme.palePixel = theme.solid.map((solid) => pixelOf(solid, theme.panel, 0.38));
  return theme;
}

// A "#rrggbb" colour, mixed with the ground, as a pixel of an image: bytes are red, green, blue, alpha.
function pixelOf(color, ground, strength) {
  const mix = (at) => Math.round(parseInt(color.slice(at, at + 2), 16) * strength
    + parseInt(ground.slice(at, at + 2), 16) * (1 - strength));
  return ((255 << 24) | (mix(5) << 16) | (mix(3) << 8) | mix(1)) >>> 0;
}

// Thin diagonal lines on a paler ground, in device pixels so that they stay sharp.
function hatch(solid, ground, ratio) {
  const tile = document.createElement("canvas");
  const side = Math.round(6 * ratio);
  tile.width = tile.height = side;
  const pen = tile.getContext("2d");
  pen.fillStyle = ground;
  pen.fillRect(0, 0, side, side);
  pen.globalAlpha = 0.22;
  pen.fillStyle = solid;
  pen.fillRect(0, 0, side, side);
  pen.globalAlpha = 0.6;
  pen.strokeStyle = solid;
  pen.lineWidth = 1.1 * ratio;
  pen.beginPath();
  for (const shift of [-side, 0, side]) {
    pen.moveTo(shift, side);
    pen.lineTo(shift + side, 0);
  }
  pen.stroke();
  const pattern = pen.createPattern(tile, "repeat");
  pattern.setTransform(new DOMMatrix().scale(1 / ratio));
  return pattern;
}

function drawTimeline(pen, view, theme, marked) {
  pen.setTransform(theme.ratio, 0, 0, theme.ratio, 0, 0);
  pen.font = FONT;
  pen.textBaseline = "middle";
  pen.fillStyle = theme.panel;
  pen.fillRect(0, 0, view.width, view.height);
  drawGrid(pen, view, theme);
  pen.save();
  pen.beginPath();
  pen.rect(view.labelsPx, AXIS_PX, view.plotWidth + 8, view.height - AXIS_PX);
  pen.clip();
  for (const row of view.data.rows) {
    if (view.yOf(row) + view.rowPx > AXIS_PX && view.yOf(row) < view.height) drawRow(pen, view, theme, row);
  }
  const numArrows = drawArrows(pen, view, theme, marked);
  if (marked >= 0) drawMarks(pen, view, theme, marked);
  pen.restore();
  drawLabels(pen, view, theme);
  drawAxis(pen, view, theme);
  return numArrows;
}

function drawGrid(pen, view, theme) {
  pen.fillStyle = theme.faint;
  for (const time of view.ticks().times) pen.fillRect(Math.round(view.xOf(time)), AXIS_PX, 1, view.height);
  for (const row of view.data.rows) {
    if (row.isFirstOfRank && row.index > 0) pen.fillRect(0, view.yOf(row) - 5, view.width, 1);
  }
}

function drawAxis(pen, view, theme) {
  pen.fillStyle = theme.panel;
  pen.fillRect(0, 0, view.width, AXIS_PX);
  pen.fillStyle = theme.line;
  pen.fillRect(0, AXIS_PX - 1, view.width, 1);
  const { step, times } = view.ticks();
  for (const time of times) {
    const x = Math.round(view.xOf(time));
    pen.fillStyle = theme.line;
    pen.fillRect(x, AXIS_PX - 6, 1, 6);
    const text = momentText(time, step);
    if (x + 4 + pen.measureText(text).width > view.width) continue;
    pen.fillStyle = theme.soft;
    pen.fillText(text, x + 4, AXIS_PX / 2);
  }
}

// As wide as the longest group name needs, within reason.
function labelsWidth(pen, view) {
  pen.font = FONT;
  const longest = Math.max(...view.data.rows.map((row) => pen.measureText(row.label.slice(0, 60)).width), 0);
  return Math.round(Math.min(Math.max(longest + 82, 120), Math.max(view.width * 0.22, 148)));
}

function drawLabels(pen, view, theme) {
  pen.fillStyle = theme.panel;
  pen.fillRect(0, 0, view.labelsPx - 1, view.height);
  pen.fillStyle = theme.line;
  pen.fillRect(view.labelsPx - 1, 0, 1, view.height);
  for (const row of view.data.rows) {
    const y = view.yOf(row) + view.rowPx / 2;
    if (y < AXIS_PX - view.rowPx || y > view.height + view.rowPx) continue;
    if (row.isFirstOfRank) {
      pen.fillStyle = theme.text;
      pen.font = `600 ${FONT}`;
      pen.fillText(`rank ${row.rank}`, 10, y);
    }
    pen.font = FONT;
    pen.fillStyle = theme.soft;
    pen.fillText(fitText(pen, row.label, view.labelsPx - 76), 68, y);
  }
}

function fitText(pen, text, width) {
  if (pen.measureText(text).width <= width) return text;
  let kept = text.slice(0, 60);
  while (kept && pen.measureText(`${kept}…`).width > width) kept = kept.slice(0, -1);
  return `${kept}…`;
}

function drawRow(pen, view, theme, row) {
  const { start, duration, operation, waited } = view.data;
  const { from, pxPerNs } = view;
  const until = from + view.length;
  const sums = new PixelSums(view.plotWidth, theme.solid.length);
  for (let i = firstEndingAfter(view.data, row, from); i < row.end && start[i] < until; i++) {
    if (duration[i] * pxPerNs >= 2) drawSpan(pen, view, theme, row, i);
    else sums.add((start[i] - from) * pxPerNs, duration[i] * pxPerNs, waited[i] * pxPerNs, operation[i]);
  }
  sums.draw(pen, theme, view.labelsPx, view.yOf(row), view.rowPx);
}

function drawSpan(pen, view, theme, row, i) {
  const { start, duration, operation, waited, number, unfinished, operations } = view.data;
  const left = Math.max(view.xOf(start[i]), view.labelsPx - 2);
  const right = Math.min(view.xOf(start[i] + duration[i]), view.width + 2);
  const turn = Math.min(Math.max(view.xOf(start[i] + waited[i]), left), right);
  const y = view.yOf(row);
  const gap = right - left > 5 ? 1 : 0;
  pen.fillStyle = theme.waiting[operation[i]];
  pen.fillRect(left, y, Math.max(turn - left - (turn >= right ? gap : 0), 0), view.rowPx);
  pen.fillStyle = theme.solid[operation[i]];
  if (right > turn) pen.fillRect(turn, y, Math.max(right - turn - gap, 0.5), view.rowPx);
  if (waited[i] > 0) pen.fillRect(left, y, 1, view.rowPx);
  if (unfinished[i]) {
    pen.fillStyle = theme.warn;
    pen.fillRect(left, y, right - left - gap, 2);
    pen.fillRect(left, y + view.rowPx - 2, right - left - gap, 2);
    pen.fillRect(Math.max(right - 5, left), y, 5 - gap, view.rowPx);
  }
  if (view.rowPx < 16) return;
  const isSolid = right - turn > turn - left;
  const text = operations[operation[i]];
  const [at, room] = isSolid ? [turn, right - turn - 10] : [left, turn - left - 10];
  if (room < 24) return;
  const long = `${text} #${number[i]}`;
  const shown = pen.measureText(long).width <= room ? long : text;
  const textWidth = pen.measureText(shown).width;
  if (textWidth > room) return;
  if (!isSolid) {  // hatching makes letters hard to read
    pen.fillStyle = theme.panel;
    pen.fillRect(at + 4, y + 4, textWidth + 4, view.rowPx - 8);
  }
  pen.fillStyle = isSolid ? theme.panel : theme.text;
  pen.fillText(shown, at + 6, y + view.rowPx / 2 + 0.5);
}

// Spans too narrow to draw, summed up by pixel: height is the part of the time, pale what of it was waiting.
class PixelSums {
  constructor(width, numOperations) {
    this.width = Math.ceil(width) + 1;
    this.numOperations = numOperations;
    this.busy = null;
  }

  add(x, width, waited, operation) {
    if (!this.busy) {
      this.busy = new Float32Array(this.width * this.numOperations);
      this.waiting = new Float32Array(this.width * this.numOperations);
      this.used = new Uint8Array(this.width);
    }
    const pixel = Math.max(x, 0) | 0;
    if (pixel >= this.width) return;
    const at = pixel * this.numOperations + operation;
    this.busy[at] += width - waited + 1e-6;
    this.waiting[at] += waited;
    this.used[pixel] = 1;
  }

  // Painted into an image: a rectangle for each would take longer than everything else.
  draw(pen, theme, left, top, height) {
    if (!this.busy) return;
    const image = new ImageData(this.width, height);
    const colors = new Uint32Array(image.data.buffer);
    const scales = this.scales(height);
    for (let pixel = 0; pixel < this.width; pixel++) {
      if (this.used[pixel]) this.paintColumn(colors, theme, pixel, scales[pixel], height);
    }
    const canvas = document.createElement("canvas");
    canvas.width = this.width;
    canvas.height = height;
    canvas.getContext("2d").putImageData(image, 0, 0);
    pen.imageSmoothingEnabled = false;
    pen.drawImage(canvas, left, top);
  }

  paintColumn(colors, theme, pixel, scale, height) {
    const first = pixel * this.numOperations;
    let painted = 0;
    let wanted = 0;
    for (const [part, paints] of [[this.busy, theme.solidPixel], [this.waiting, theme.palePixel]]) {
      for (let operation = 0; operation < this.numOperations; operation++) {
        wanted += part[first + operation] * scale;
        for (; painted < wanted - 0.5 && painted < height; painted++) {
          colors[(height - 1 - painted) * this.width + pixel] = paints[operation];
        }
      }
    }
  }

  // Pixels per unit of time, so that a full pixel fills the row and a single short span can still be seen.
  scales(height) {
    return Float32Array.from(this.used, (isUsed, pixel) => {
      if (!isUsed) return 0;
      let total = 0;
      const first = pixel * this.numOperations;
      for (let i = first; i < first + this.numOperations; i++) total += this.busy[i] + this.waiting[i];
      return (height * Math.min(Math.max(total, 0.3), 1)) / total;
    });
  }
}

function drawArrows(pen, view, theme, marked) {
  const { arrows, start, duration, event } = view.data;
  const until = view.from + view.length;
  const shown = [];
  let numShown = 0;
  for (let i = 0; i < arrows.length; i += 2) {
    const send = arrows[i];
    const receive = arrows[i + 1];
    if (start[send] > until || start[receive] + duration[receive] < view.from) continue;
    numShown++;
    if (shown.length <= MOST_ARROWS || (marked >= 0 && event[marked] === event[send])) shown.push([send, receive]);
  }
  pen.strokeStyle = pen.fillStyle = theme.arrow;
  for (const [send, receive] of shown) {
    const isMarked = marked >= 0 && event[marked] === event[send];
    if (!isMarked && numShown > MOST_ARROWS) continue;
    pen.globalAlpha = isMarked ? 1 : 0.55;
    pen.lineWidth = isMarked ? 2 : 1;
    drawArrow(pen, view, send, receive);
  }
  pen.globalAlpha = 1;
  return numShown;
}

function drawArrow(pen, view, send, receive) {
  const [from, to] = [view.rectOf(send), view.rectOf(receive)];
  const isDown = to.y > from.y;
  const [x0, y0] = [from.x, from.y + (isDown ? from.height : 0)];
  const [x1, y1] = [to.x + to.width, to.y + (isDown ? 0 : to.height)];
  const bend = (y1 - y0) * 0.5;
  pen.beginPath();
  pen.moveTo(x0, y0);
  pen.bezierCurveTo(x0, y0 + bend, x1, y1 - bend, x1, y1 - (isDown ? 5 : -5));
  pen.stroke();
  pen.beginPath();
  pen.moveTo(x1, y1);
  pen.lineTo(x1 - 3.5, y1 - (isDown ? 7 : -7));
  pen.lineTo(x1 + 3.5, y1 - (isDown ? 7 : -7));
  pen.fill();
}

// Frames around all spans of one collective, and a line where the last rank came.
function drawMarks(pen, view, theme, marked) {
  const { start, calls, call } = view.data;
  const mates = matesOf(view.data, marked);
  let last = marked;
  for (const span of mates) {
    if (start[span] > start[last]) last = span;
    frame(pen, view, view.rectOf(span), theme, span === marked ? 2.5 : 1.5);
  }
  if (mates.length < 2 || calls[call[marked]][5] !== null) return;
  pen.strokeStyle = theme.text;
  pen.lineWidth = 1;
  pen.setLineDash([4, 3]);
  pen.beginPath();
  pen.moveTo(view.xOf(start[last]), AXIS_PX);
  pen.lineTo(view.xOf(start[last]), view.height);
  pen.stroke();
  pen.setLineDash([]);
}

function frame(pen, view, rect, theme, width) {
  const left = Math.max(rect.x, view.labelsPx - 10);
  pen.strokeStyle = theme.text;
  pen.lineWidth = width;
  pen.strokeRect(left - 1, rect.y - 1, Math.max(Math.min(rect.width, 1e5), 2) - (left - rect.x) + 1, rect.height + 2);
}

// The whole run in one strip: how many of the ranks were in a call, and how many of those waited.
function drawOverview(pen, view, theme, height) {
  const width = Math.ceil(view.plotWidth);
  const busy = new Float32Array(width + 1);
  const waiting = new Float32Array(width + 1);
  const scale = view.plotWidth / view.whole;
  const { start, duration, waited, numSpans, ranks } = view.data;
  for (let i = 0; i < numSpans; i++) {
    spread(busy, (start[i] + waited[i]) * scale, (duration[i] - waited[i]) * scale);
    spread(waiting, start[i] * scale, waited[i] * scale);
  }
  pen.setTransform(theme.ratio, 0, 0, theme.ratio, 0, 0);
  pen.fillStyle = theme.faint;
  pen.fillRect(0, 0, view.width, height);
  for (let x = 0; x < width; x++) {
    const work = Math.min(busy[x] / ranks.length, 1) * height;
    const wait = Math.min(waiting[x] / ranks.length, 1) * height;
    pen.fillStyle = theme.accent;
    pen.fillRect(view.labelsPx + x, height - work, 1, work);
    pen.globalAlpha = 0.35;
    pen.fillRect(view.labelsPx + x, Math.max(height - work - wait, 0), 1, Math.min(wait, height - work));
    pen.globalAlpha = 1;
  }
  pen.font = FONT;
  pen.textBaseline = "middle";
  pen.fillStyle = theme.soft;
  pen.fillText("whole run", 10, height / 2);
}

function spread(sums, x, width) {
  let pixel = Math.floor(x);
  for (let end = x + width; x < end && pixel < sums.length; pixel++) {
    const next = Math.min(pixel + 1, end);
    sums[pixel] += next - x;
    x = next;
  }
}
