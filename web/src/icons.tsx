const paths = {
  plus: "M12 5v14M5 12h14",
  search: "M11 18a7 7 0 1 0 0-14 7 7 0 0 0 0 14Zm5-2 4 4",
  menu: "M4 7h16M4 12h16M4 17h16",
  more: "M6 12h.01M12 12h.01M18 12h.01",
  send: "M12 19V5m-6 6 6-6 6 6",
  stop: "M7.5 7.5h9v9h-9z",
  copy: "M9 9h10v10H9zM5 15V5h10",
  check: "m5 12 5 5 9-10",
  redo: "M20 11a8 8 0 1 0-2.3 6.3M20 5v6h-6",
  edit: "M4 20h4L19 9l-4-4L4 16v4Z",
  left: "m14 6-6 6 6 6",
  right: "m10 6 6 6-6 6",
  down: "M12 5v14m-6-6 6 6 6-6",
  settings: "M4 8h10m4 0h2M4 16h2m4 0h10M16 6v4M8 14v4",
  moon: "M19 14.5A8 8 0 0 1 9.5 5a7.5 7.5 0 1 0 9.5 9.5Z",
  sun: "M12 16a4 4 0 1 0 0-8 4 4 0 0 0 0 8Zm0-13v2m0 14v2M3 12h2m14 0h2M5.6 5.6 7 7m10 10 1.4 1.4M5.6 18.4 7 17M17 7l1.4-1.4",
  auto: "M12 4a8 8 0 1 0 0 16 8 8 0 0 0 0-16Zm0 0v16m3-13v10",
  keys: "M3 7h18v10H3zM7 11h.01M11 11h.01M15 11h.01M8 14h8",
  tool: "M14 7a4 4 0 0 1 5-3l-2.5 2.5 1 1L20 5a4 4 0 0 1-5 5l-8 8-2-2 8-8Z",
  close: "m6 6 12 12M18 6 6 18",
};

export function Icon({ name }: { name: keyof typeof paths }) {
  return (
    <svg class="icon" viewBox="0 0 24 24" aria-hidden="true">
      <path d={paths[name]} />
    </svg>
  );
}
