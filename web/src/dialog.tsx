import type { ComponentChildren } from "preact";
import { useLayoutEffect, useRef } from "preact/hooks";
import { Icon } from "./icons";

interface DialogProps {
  title: string;
  onClose: () => void;
  children: ComponentChildren;
  side?: boolean; // along the right edge instead of in the middle
}

/** A modal dialog: the browser keeps the focus inside, closes it on Escape and gives the focus back. */
export function Dialog({ title, onClose, children, side = false }: DialogProps) {
  const element = useRef<HTMLDialogElement>(null);
  const isMounted = useRef(true);
  useLayoutEffect(() => {
    const dialog = element.current!;
    dialog.showModal();
    return () => {
      isMounted.current = false;
      dialog.close();
    };
  }, []);
  // The close event comes late: by then another dialog may be open.
  const onClosed = () => isMounted.current && onClose();
  const onCancel = (event: Event) => {
    event.preventDefault();
    onClose();
  };
  const onBackdrop = (event: MouseEvent) => {
    if (event.target === element.current) onClose();
  };
  return (
    <dialog ref={element} class={side ? "dialog side" : "dialog"} aria-labelledby="dialog-title" onCancel={onCancel} onClose={onClosed} onMouseDown={onBackdrop}>
      <div class="dialog-body">
        <header>
          <h2 id="dialog-title">{title}</h2>
          <button type="button" class="icon-button" aria-label="Close" onClick={onClose}>
            <Icon name="close" />
          </button>
        </header>
        {children}
      </div>
    </dialog>
  );
}
