// The page of an exported attempt: its data stands in it.
import { attemptView } from "./attempt.js";

const held = JSON.parse(document.getElementById("data").textContent);
document.title = held.attempt.id;
attemptView(document.getElementById("main"), held.attempt, { run: "", tab: "conversation" }, async () => held.tokens);
