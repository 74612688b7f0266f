/** Before the first paint: the theme and the language that this reader chose (preferences.js), else those of the browser. */
(() => {
  const root = document.documentElement;
  /** @type {{ theme?: string, language?: string }} */
  let chosen = {};
  try {
    chosen = JSON.parse(localStorage.getItem("sessile-preferences") ?? "{}");
  } catch {
    // the browser forbids it, or somebody wrote nonsense there
  }
  if (chosen.theme === "light" || chosen.theme === "dark") root.dataset["theme"] = chosen.theme;
  const first = navigator.languages.find((each) => /^(en|de)\b/.test(each)) ?? "en";
  root.lang = chosen.language === "en" || chosen.language === "de" ? chosen.language : first.slice(0, 2);
})();
