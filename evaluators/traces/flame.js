// A click on a frame zooms it to the width of the picture; a click on one of its ancestors zooms out.
(([WHOLE, MARGIN, CHARACTER, LEAST]) => {
  const svg = document.currentScript.parentNode;
  const note = svg.querySelector(".note");
  const said = note.textContent + "; click a frame to zoom in, Esc to go back";
  const frames = [...svg.querySelectorAll("g")].map(group => {
    const rect = group.querySelector("rect"), title = group.querySelector("title").textContent;
    const name = title.slice(0, title.lastIndexOf(": "));
    const x = +rect.getAttribute("x"), width = +rect.getAttribute("width");
    return {group, rect, title, name, x, width, label: group.querySelector("text")};
  });
  function zoom(x, width) {
    const scale = WHOLE / width, edge = width / 1000;
    for (const frame of frames) {
      const seen = frame.x < x + width - edge && frame.x + frame.width > x + edge;
      frame.group.style.display = seen ? "" : "none";
      if (!seen) continue;
      const left = Math.max(MARGIN, MARGIN + (frame.x - x) * scale);
      const right = Math.min(MARGIN + WHOLE, MARGIN + (frame.x + frame.width - x) * scale);
      frame.rect.setAttribute("x", left);
      frame.rect.setAttribute("width", right - left);
      const room = Math.floor((right - left - 4) / CHARACTER);
      if (!frame.label && room < LEAST) continue;
      if (!frame.label) {
        frame.label = document.createElementNS(svg.namespaceURI, "text");
        frame.label.setAttribute("y", +frame.rect.getAttribute("y") + 12);
        frame.group.append(frame.label);
      }
      const cut = frame.name.length > room;
      frame.label.textContent = room < LEAST ? "" : cut ? frame.name.slice(0, room - 1) + "…" : frame.name;
      frame.label.setAttribute("x", left + 3);
    }
  }
  for (const frame of frames) {
    frame.group.addEventListener("click", () => zoom(frame.x, frame.width));
    frame.group.addEventListener("mouseover", () => { note.textContent = frame.title; });
    frame.group.addEventListener("mouseout", () => { note.textContent = said; });
  }
  document.addEventListener("keydown", event => { if (event.key === "Escape") zoom(MARGIN, WHOLE); });
  note.textContent = said;
})
