// Formulas. KaTeX, its style and its fonts are loaded when the first formula appears.

type Katex = typeof import("katex").default;
let katex: Katex | undefined;
let loading: Promise<Katex> | undefined;

/** Sets the TeX that is the text of `element`, now or once KaTeX is there. */
export function setMath(element: HTMLElement): void {
  const tex = element.textContent ?? "";
  const display = element.classList.contains("display");
  if (katex) return set(katex, element, tex, display);
  loading ??= Promise.all([import("katex"), import("katex/dist/katex.min.css")]).then(([module]) => (katex = module.default));
  loading.then((loaded) => set(loaded, element, tex, display)).catch(() => (loading = undefined)); // the TeX can be read too
}

function set(loaded: Katex, element: HTMLElement, tex: string, display: boolean): void {
  // KaTeX builds nodes, not HTML; without trust it makes no links, images or attributes of the model's choice.
  try {
    loaded.render(tex, element, { displayMode: display, throwOnError: true, trust: false, maxExpand: 200, maxSize: 20, strict: false });
  } catch {
    element.textContent = tex; // what is not TeX is shown as it was written
  }
}
