import { render } from "preact";
import { App } from "./app";
import { chat } from "./chat";
import "./style.css";
import { theme } from "./theme";

theme.apply();
render(<App />, document.getElementById("app")!);
void chat.start();
