// Pages are whole without this file. It makes them live, and adds the keyboard and the theme.
"use strict";

// Live: the same address, asked for as a stream of its inner part -----------------------------
const live = document.getElementById("live");
const stateText = document.getElementById("live-state");
let source = null;
let seenAt = Date.now();
let isHeld = false;

function liveAddress() {
  const address = new URL(location.href);
  address.searchParams.set("every", document.getElementById("live-every").value);
  return address;
}

// What somebody has unfolded stays so, and a form that somebody has begun to fill in stays as it is.
const KEPT = {
  beforeAttributeUpdated: (name, node) => !(name === "open" && node.tagName === "DETAILS"),
  beforeNodeMorphed: (node) => !(node.matches && node.matches("form.touched")),
};
document.addEventListener("input", (event) => { if (event.target.form) event.target.form.classList.add("touched"); });

function connect() {
  source = new EventSource(liveAddress());
  source.addEventListener("page", (event) => {
    seen();
    // Somebody who types must not be disturbed; the next change comes soon.
    const inner = document.getElementById("inner");
    const field = document.activeElement;
    if (field && inner.contains(field) && field.matches("input:not([type=search]), select, textarea")) return;
    // Who reads a record of a list that moves must not lose it.
    isHeld = inner.querySelector("[data-hold] details[open]") !== null;
    if (isHeld) { tell(); return; }
    Idiomorph.morph(inner, JSON.parse(event.data), { morphStyle: "innerHTML", ignoreActiveValue: true, callbacks: KEPT });
    document.dispatchEvent(new CustomEvent("inner-changed"));
  });
  source.addEventListener("same", seen);
  source.onerror = () => { live.classList.add("broken"); tell(); };
}

function seen() { seenAt = Date.now(); live.classList.remove("broken"); tell(); }

function tell() {
  if (!source) { stateText.textContent = "paused"; return; }
  if (isHeld) { stateText.textContent = "held while a record is unfolded"; return; }
  const seconds = Math.round((Date.now() - seenAt) / 1000);
  if (live.classList.contains("broken")) stateText.textContent = `no connection, as of ${seconds} s ago`;
  else stateText.textContent = seconds < 2 ? "live" : `as of ${seconds} s ago`;
}

function disconnect() { if (source) source.close(); source = null; tell(); }

if (live && window.EventSource && window.Idiomorph) {
  const pause = document.getElementById("live-pause");
  const every = document.getElementById("live-every");
  const remembered = localStorage.getItem("every");
  if (remembered && !new URL(location.href).searchParams.has("every")) every.value = remembered;
  pause.addEventListener("click", () => {
    if (source) disconnect(); else { connect(); seen(); }
    pause.textContent = source ? "Pause" : "Go on";
  });
  every.addEventListener("change", () => {
    localStorage.setItem("every", every.value);
    if (source) { disconnect(); connect(); }
  });
  // A tab that nobody sees needs no stream.
  document.addEventListener("visibilitychange", () => {
    if (pause.textContent !== "Pause") return;
    if (document.hidden) disconnect(); else if (!source) connect();
  });
  setInterval(tell, 1000);
  connect();
}

// Keyboard: / finds, g and a letter goes somewhere ----------------------------------------------
const places = { o: "/", t: "/topics", g: "/groups", x: "/transactions", c: "/configuration" };
let going = false;
document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  if (event.target.matches("input, select, textarea")) {
    if (event.key === "Escape") event.target.blur();
    return;
  }
  if (event.key === "/") { event.preventDefault(); document.getElementById("find").focus(); }
  else if (going && places[event.key]) location.href = places[event.key];
  going = event.key === "g" && !going;
});

// Theme: as the system, light, dark ---------------------------------------------------------------
const themes = ["", "light", "dark"];
function applyTheme(name) {
  if (name) document.documentElement.dataset.theme = name; else delete document.documentElement.dataset.theme;
  document.getElementById("theme").textContent = { "": "Theme: system", light: "Theme: light", dark: "Theme: dark" }[name];
}
applyTheme(localStorage.getItem("theme") || "");
document.getElementById("theme").addEventListener("click", () => {
  const next = themes[(themes.indexOf(localStorage.getItem("theme") || "") + 1) % themes.length];
  localStorage.setItem("theme", next);
  applyTheme(next);
});
