// What Zensical's script adds to a page after it is loaded, made usable with a keyboard and a screen
// reader: every landmark has a name of its own, and a table that scrolls can have the focus.
(() => {
  const mend = () => {
    document.querySelector(".md-nav--primary")?.setAttribute("aria-label", "All pages");
    for (const buttons of document.querySelectorAll("nav.md-code__nav:not([role])"))
      buttons.setAttribute("role", "none"); // the button to copy code is no navigation
    for (const box of document.querySelectorAll(".md-typeset__scrollwrap")) {
      if (!box.hasAttribute("role")) {
        box.setAttribute("role", "group");
        box.setAttribute("aria-label", "Table");
      }
      if (box.scrollWidth > box.clientWidth) box.tabIndex = 0;
      else box.removeAttribute("tabindex");
    }
  };
  addEventListener("resize", mend);
  const begin = () => {
    new MutationObserver(mend).observe(document.body, { childList: true, subtree: true });
    mend();
  };
  if (document.body) begin();
  else addEventListener("DOMContentLoaded", begin);
})();
