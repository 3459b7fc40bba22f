// A link may lead to what stands in a tab that is not shown: show it, and go there.
function showTarget() {
  const target = document.getElementById(decodeURIComponent(location.hash.slice(1)));
  const content = target && target.closest(".sd-tab-content");
  if (content) {
    document.getElementById(content.previousElementSibling.htmlFor).checked = true;
    target.scrollIntoView();
  }
}
window.addEventListener("hashchange", showTarget);
window.addEventListener("load", showTarget);
