"use strict";
// Before anything is painted, so that nobody sees the other theme first.
{
  const chosen = localStorage.getItem("berth-theme");
  if (chosen === "dark" || chosen === "light") document.documentElement.dataset.theme = chosen;
}
