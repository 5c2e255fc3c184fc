// What one call was, in words, beside the pointer. Names come from programs, so they are only ever set as text.

function describe(data, span) {
  const [operation, content, op, root, sizeBytes, tag, isAsync] = data.calls[data.call[span]];
  const row = rowOfSpan(data, span);
  const name = data.operations[operation];
  const pairs = [["rank", `${row.rank}, ${row.label}`]];
  const add = (label, text, kind = "") => { if (text) pairs.push([label, text, kind]); };
  add("line", data.places[data.place[span]]);
  if (tag !== null) {
    add(name === "send" ? "to" : "from", data.peer[span] < 0 ? "a rank that is not known" : `rank ${data.peer[span]}`);
    add("tag", tag ? `${tag}` : "");
  }
  add("data", [content, op, sizeBytes ? sizeText(sizeBytes) : ""].filter(Boolean).join(", "));
  add("root", root === null ? "" : root < 0 ? "a rank that is not known" : `rank ${root}`);
  add("at", momentText(data.start[span], Math.max(data.duration[span] / 100, 1)));
  add("took", data.unfinished[span] ? "" : durationText(data.duration[span]));
  add("waited", waitedText(data, span), "strong");
  add("late", causedText(data, span, row.rank), "strong");
  add("async", isAsync ? "the program went on meanwhile" : "");
  add("end", data.unfinished[span] ? "the call never returned" : "", "bad");
  return { title: `${name} #${data.number[span]}`, pairs };
}

function waitedText(data, span) {
  const waited = data.waited[span];
  if (!waited) return "";
  const share = Math.round((100 * waited) / Math.max(data.duration[span], 1));
  const culprit = data.waitedFor[span] < 0 ? "a rank that is not known" : `rank ${data.waitedFor[span]}`;
  return `${durationText(waited)} (${share} %) for ${culprit}`;
}

function causedText(data, span, rank) {
  let others = 0;
  let most = 0;
  for (const mate of matesOf(data, span)) {
    if (mate === span || data.waitedFor[mate] !== rank || !data.waited[mate]) continue;
    others++;
    most = Math.max(most, data.waited[mate]);
  }
  return others ? `${others} ${others === 1 ? "rank" : "ranks"} waited up to ${durationText(most)} for this one` : "";
}

function showDetails(box, data, span, x, y) {
  box.hidden = span < 0;
  if (span < 0) return;
  const { title, pairs } = describe(data, span);
  const heading = document.createElement("h3");
  heading.textContent = title;
  const list = document.createElement("dl");
  for (const [label, text, kind] of pairs) {
    const term = document.createElement("dt");
    const value = document.createElement("dd");
    term.textContent = label;
    value.textContent = text;
    value.className = kind || "";
    list.append(term, value);
  }
  box.replaceChildren(heading, list);
  const size = box.getBoundingClientRect();
  const left = x + 16 + size.width > innerWidth ? Math.max(x - size.width - 12, 4) : x + 16;
  const top = y + 18 + size.height > innerHeight ? Math.max(y - size.height - 12, 4) : y + 18;
  box.style.left = `${left}px`;
  box.style.top = `${top}px`;
}
