// Light, dark or as the system has it.

import { useEffect, useState } from "preact/hooks";

export type Theme = "auto" | "light" | "dark";
const order: Theme[] = ["auto", "light", "dark"];
const name = "calla.theme";
const listeners = new Set<() => void>();
let current = (order as (string | null)[]).includes(localStorage.getItem(name)) ? (localStorage.getItem(name) as Theme) : "auto";

const apply = () => {
  if (current === "auto") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = current;
};

export const theme = {
  apply,
  next() {
    current = order[(order.indexOf(current) + 1) % order.length]!;
    localStorage.setItem(name, current);
    apply();
    for (const listener of listeners) listener();
  },
};

export function useTheme(): Theme {
  const [value, setValue] = useState(current);
  useEffect(() => {
    const listener = () => setValue(current);
    listeners.add(listener);
    return () => void listeners.delete(listener);
  }, []);
  return value;
}
