import { useLayoutEffect, useRef, useState } from "preact/hooks";
import { Icon } from "./icons";

export interface MenuItem {
  label: string;
  run: () => void;
  danger?: boolean;
}

const height = 160; // pixels that four items need

/** A button that opens a menu: arrows walk, Escape and a click elsewhere close it. */
export function Menu({ label, items }: { label: string; items: MenuItem[] }) {
  const [place, setPlace] = useState<{ left: number; top: number } | null>(null);
  const button = useRef<HTMLButtonElement>(null);
  const list = useRef<HTMLDivElement>(null);
  const close = (refocus: boolean) => {
    setPlace(null);
    if (refocus) button.current?.focus();
  };
  useLayoutEffect(() => {
    if (!place) return;
    list.current?.querySelector("button")?.focus();
    const onPointer = (event: Event) => {
      if (!list.current?.contains(event.target as Node)) close(false);
    };
    const onScroll = () => close(false);
    document.addEventListener("pointerdown", onPointer);
    window.addEventListener("resize", onScroll);
    document.addEventListener("scroll", onScroll, true);
    return () => {
      document.removeEventListener("pointerdown", onPointer);
      window.removeEventListener("resize", onScroll);
      document.removeEventListener("scroll", onScroll, true);
    };
  }, [place]);

  const open = () => {
    const box = button.current!.getBoundingClientRect();
    const below = box.bottom + height < window.innerHeight;
    setPlace({ left: Math.max(8, box.right - 180), top: below ? box.bottom + 4 : box.top - height });
  };
  const onKey = (event: KeyboardEvent) => {
    const buttons = [...list.current!.querySelectorAll("button")];
    const at = buttons.indexOf(document.activeElement as HTMLButtonElement);
    const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (step !== undefined) buttons[(at + step + buttons.length) % buttons.length]!.focus();
    else if (event.key === "Escape") close(true);
    else if (event.key === "Tab") return close(false);
    else return;
    event.preventDefault();
    event.stopPropagation();
  };

  return (
    <>
      <button ref={button} type="button" class="icon-button" aria-label={label} aria-haspopup="menu" aria-expanded={place !== null} onClick={open}>
        <Icon name="more" />
      </button>
      {place && (
        <div ref={list} class="menu" role="menu" aria-label={label} style={place} onKeyDown={onKey}>
          {items.map((item) => (
            <button
              key={item.label}
              type="button"
              role="menuitem"
              class={item.danger ? "danger" : undefined}
              onClick={() => {
                close(true);
                item.run();
              }}
            >
              {item.label}
            </button>
          ))}
        </div>
      )}
    </>
  );
}
