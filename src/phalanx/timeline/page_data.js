"use strict";

// The spans of all ranks, in columns: row after row, by start within a row. Times are nanoseconds.

async function unpack(text) {
  const packed = atob(text);
  const bytes = new Uint8Array(packed.length);
  for (let i = 0; i < packed.length; i++) bytes[i] = packed.charCodeAt(i);
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
  return new Response(stream).arrayBuffer();
}

async function readData() {
  const data = JSON.parse(document.getElementById("about").textContent);
  const buffer = await unpack(document.getElementById("columns").textContent.trim());
  const types = { d: Float64Array, I: Uint32Array, i: Int32Array };
  let offset = 0;
  for (const [name, code] of data.columns) {
    data[name] = new types[code](buffer, offset, data.numSpans);
    offset += data[name].byteLength;
  }
  data.arrows = new Uint32Array(buffer, offset);  // send, receive, send, receive, ...
  data.operation = Uint8Array.from(data.call, (call) => data.calls[call][0]);
  let first = 0;
  data.rows = data.rows.map(([rank, label, count], index) => {
    const row = { index, rank, label, first, end: first + count };
    first += count;
    return row;
  });
  return data;
}

// The first span of the row that ends after `time`. Spans of a row do not overlap, so ends are in order too.
function firstEndingAfter(data, row, time) {
  let low = row.first;
  let high = row.end;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (data.start[middle] + data.duration[middle] > time) high = middle;
    else low = middle + 1;
  }
  return low;
}

function rowOfSpan(data, span) {
  return data.rows.find((row) => span < row.end);
}

// All spans of the same collective, or of the same message; found by one pass over all, kept for the next.
function matesOf(data, span) {
  if (!data.mates) {
    const counts = new Uint32Array(data.event.reduce((most, event) => Math.max(most, event), 0) + 2);
    for (const event of data.event) counts[event + 1]++;
    for (let i = 1; i < counts.length; i++) counts[i] += counts[i - 1];
    const next = counts.slice();
    const order = new Uint32Array(data.numSpans);
    for (let i = 0; i < data.numSpans; i++) order[next[data.event[i]]++] = i;
    data.mates = { counts, order };
  }
  const { counts, order } = data.mates;
  return order.subarray(counts[data.event[span]], counts[data.event[span] + 1]);
}

function durationText(ns) {
  for (const [unit, size] of [["s", 1e9], ["ms", 1e6], ["us", 1e3]]) {
    if (Math.abs(ns) >= size) return `${Number((ns / size).toPrecision(4))} ${unit}`;
  }
  return `${Math.round(ns)} ns`;
}

function sizeText(bytes) {
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let exponent = 0;
  while (exponent < 4 && bytes >= 1024 ** (exponent + 1)) exponent++;
  return `${Number((bytes / 1024 ** exponent).toPrecision(4))} ${units[exponent]}`;
}
