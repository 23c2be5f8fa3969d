"use strict";
const buttons = [...document.querySelectorAll(".filters button")];
const search = document.getElementById("search");
const rows = [...document.querySelectorAll(".claim")];
const texts = new Map(rows.map((row) => [row, row.textContent.toLowerCase()]));

function show() {
  const pressed = buttons.filter((button) => button.getAttribute("aria-pressed") === "true");
  const verdicts = new Set((pressed.length ? pressed : buttons).map((button) => button.dataset.mark));
  const words = search.value.toLowerCase().split(/\s+/);
  for (const row of rows) {
    row.hidden = !verdicts.has(row.dataset.verdict) || !words.every((word) => texts.get(row).includes(word));
  }
  for (const group of document.querySelectorAll("#claims tbody")) {
    group.hidden = !group.querySelector(".claim:not([hidden])");
  }
  document.getElementById("shown").value = `${rows.filter((row) => !row.hidden).length} of ${rows.length} claims`;
}

for (const button of buttons) {
  button.addEventListener("click", () => {
    button.setAttribute("aria-pressed", button.getAttribute("aria-pressed") !== "true");
    show();
  });
}
search.addEventListener("input", show);

// A link to a claim must find it, whatever is filtered.
function reveal() {
  const target = document.getElementById(decodeURIComponent(location.hash.slice(1)));
  if (target?.closest("[hidden]")) {
    buttons.forEach((button) => button.setAttribute("aria-pressed", "false"));
    search.value = "";
    show();
  }
  target?.scrollIntoView();
}
window.addEventListener("hashchange", reveal);
// Written into a frame, the page has no address of its own, and a link within it would load the page around the frame.
if (location.protocol === "about:") {
  document.addEventListener("click", (event) => {
    const link = event.target.closest('a[href^="#"]');
    if (link) {
      event.preventDefault();
      location.hash = link.hash;
    }
  });
}
reveal();
