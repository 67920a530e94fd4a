// What screen readers and keyboards need and Sphinx does not write: levels of the captions in the sidebar, names of the
// two side columns, no header where a table's corner is empty, and a tab stop for every block that scrolls.
document.addEventListener("DOMContentLoaded", () => {
  for (const caption of document.querySelectorAll("[role=heading]:not([aria-level])")) caption.setAttribute("aria-level", "2");
  document.querySelector(".sidebar-drawer")?.setAttribute("aria-label", "Site");
  document.querySelector(".toc-drawer")?.setAttribute("aria-label", "Contents of this page");
  for (const cell of document.querySelectorAll("summary[aria-label]")) cell.removeAttribute("aria-label"); // its text says more
  for (const header of document.querySelectorAll("th")) {
    if (header.textContent.trim()) continue;
    const corner = document.createElement("td");
    corner.className = header.className;
    header.replaceWith(corner);
  }
  const blocks = document.querySelectorAll("pre, .table-wrapper, .math-block, .math-inline");
  const update = () => {
    for (const block of blocks) {
      if (block.scrollWidth > block.clientWidth) block.tabIndex = 0;
      else block.removeAttribute("tabindex");
    }
  };
  update();
  addEventListener("resize", update);
});
