"use strict";
// Load the page again every few seconds, unless it is paused or being read with the keyboard.
(() => {
  const seconds = Number(document.body.dataset.every);
  const button = document.getElementById("pause");
  const state = document.getElementById("refresh-state");
  if (!seconds) return;
  let paused = false;
  let ended = false;
  const reading = () => Boolean(document.activeElement?.closest("main"));
  const tell = () => {
    if (ended) return;
    button.textContent = paused ? "Continue" : "Pause";
    button.setAttribute("aria-pressed", String(paused));
    const waits = "Not updated while a part has the focus; Escape goes on.";
    state.textContent = paused ? "Not updated." : reading() ? waits : `Every ${seconds} seconds.`;
  };
  const load = async () => {
    if (paused || reading()) return;
    // A file is simply loaded again; of a server it is first asked whether it is still there.
    if (location.protocol !== "file:") {
      try {
        await fetch(location.href, { method: "HEAD" });
      } catch {
        if (paused) return; // the pause has stopped the question
        ended = true;
        clearInterval(timer);
        state.textContent = "The watch has ended; this is the last state that it showed.";
        button.hidden = true;
        return;
      }
    }
    if (!paused && !reading()) location.reload(); // it may have been paused meanwhile
  };
  const timer = setInterval(load, 1000 * seconds);
  button.hidden = false;
  button.addEventListener("click", () => {
    paused = !paused;
    if (paused) stop(); // a page that is already on its way would not know of it
    tell();
  });
  for (const kind of ["focusin", "focusout"]) addEventListener(kind, () => setTimeout(tell, 0));
  addEventListener("keydown", (event) => {
    if (event.key === "Escape" && reading()) document.activeElement.blur();
  });
  tell();
})();
